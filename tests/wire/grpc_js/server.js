'use strict'
// The Echo service on @grpc/grpc-js: `node server.js SOCKET`. It reports when it listens and when calls are cancelled.

const { Echo, grpc, orders, say, text } = require('./echo.js')

const LARGE = 64 << 20
const held = []

const failure = (code, details) => Object.assign(new Error(details), { code, details })

const server = new grpc.Server({
  'grpc.max_receive_message_length': LARGE,
  'grpc.max_send_message_length': LARGE,
  'grpc.max_concurrent_streams': 100,
})
server.addService(Echo.service, {
  unary: (call, reply) => reply(null, call.request),
  size: (call, reply) => reply(null, { value: call.request.value.length }),
  make: (call, reply) => reply(null, { value: Buffer.alloc(call.request.value, 'm') }),
  count(call) {
    for (let number = 0; number < call.request.value; number++) call.write({ value: number })
    call.end()
  },
  total(call, reply) {
    let sum = 0
    call.on('data', (message) => { sum += message.value.length })
    call.on('end', () => reply(null, { value: sum }))
  },
  both(call) {
    call.on('data', (message) => call.write(message))
    call.on('end', () => call.end())
  },
  status: (call, reply) => reply(failure(call.request.value, `100 % ✓ of ${call.request.value}\n`)),
  late_status(call) {
    call.write({ value: 1 })
    call.emit('error', failure(grpc.status.ABORTED, 'after a message'))
  },
  metadata(call, reply) {
    const first = new grpc.Metadata()
    first.add('first', '1')
    first.add('first-bin', Buffer.from([0, 255]))
    call.sendMetadata(first)
    const last = new grpc.Metadata()
    last.add('last', '2')
    last.add('last', '3')
    last.add('last-bin', Buffer.from([255, 0, 1]))
    reply(null, { value: Buffer.from(JSON.stringify(text(call.metadata))) }, last)
  },
  hang(call) {
    const deadline = call.getDeadline()
    say({ hanging: Number.isFinite(deadline) ? deadline - Date.now() : null })
    call.on('cancelled', () => say({ cancelled: 'hang' }))
  },
  held(call) {
    // @grpc/grpc-js emits 'cancelled' at every end of a call.
    call.on('cancelled', () => { if (held.includes(call)) say({ cancelled: 'held' }) })
    held.push(call)
    call.write({ value: call.request.value })
  },
})

orders((order) => {
  if (order === 'shutdown') server.tryShutdown(() => say({ shut: 'down' }))
  if (order === 'release') for (const call of held.splice(0)) { call.write({ value: -1 }); call.end() }
})
server.bindAsync(`unix:${process.argv[2]}`, grpc.ServerCredentials.createInsecure(), (error) => {
  if (error) throw error
  say({ listening: process.argv[2] })
})

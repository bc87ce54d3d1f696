'use strict'
// The Echo service on @grpc/grpc-js: `node server.js SOCKET`. It reports when it listens and when calls are cancelled,
// and reads orders, each as a line of JSON.

const fs = require('node:fs')
const path = require('node:path')
const readline = require('node:readline')
const grpc = require('@grpc/grpc-js')
const loader = require('@grpc/proto-loader')

const options = { keepCase: true, defaults: true }
const { Echo } = grpc.loadPackageDefinition(loader.loadSync(path.join(__dirname, 'echo.proto'), options)).test
const LARGE = 64 << 20
const held = []

const say = (line) => fs.writeSync(1, JSON.stringify(line) + '\n')

const server = new grpc.Server({
  'grpc.max_receive_message_length': LARGE,
  'grpc.max_send_message_length': LARGE,
  'grpc.max_concurrent_streams': 100,
})
server.addService(Echo.service, {
  unary: (call, reply) => reply(null, call.request),
  size: (call, reply) => reply(null, { value: call.request.value.length }),
  make: (call, reply) => reply(null, { value: Buffer.alloc(call.request.value, 'm') }),
  total(call, reply) {
    let sum = 0
    call.on('data', (message) => { sum += message.value.length })
    call.on('end', () => reply(null, { value: sum }))
  },
  both(call) {
    call.on('data', (message) => call.write(message))
    call.on('end', () => call.end())
  },
  hang(call) {
    const deadline = call.getDeadline()
    say({ hanging: Number.isFinite(deadline) ? deadline - Date.now() : null })
    call.on('cancelled', () => say({ cancelled: 'hang' }))
  },
  held(call) {
    held.push(call)
    call.write({ value: call.request.value })
  },
})

readline.createInterface({ input: process.stdin }).on('line', (line) => {
  const order = JSON.parse(line)
  if (order === 'shutdown') server.tryShutdown(() => say({ shut: 'down' }))
  if (order === 'release') for (const call of held.splice(0)) { call.write({ value: -1 }); call.end() }
})
// The process ends with its standard input, so that it does not outlive the tests.
process.stdin.on('end', () => process.exit(0))
server.bindAsync(`unix:${process.argv[2]}`, grpc.ServerCredentials.createInsecure(), (error) => {
  if (error) throw error
  say({ listening: process.argv[2] })
})

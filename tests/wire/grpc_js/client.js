'use strict'
// Calls Echo with @grpc/grpc-js. Reads lines of `[SCENARIO, SOCKET, ...ARGUMENTS]` and answers each with its result.

const http2 = require('node:http2')
const net = require('node:net')
const { Echo, grpc, orders, say, text } = require('./echo.js')

const LARGE = 64 << 20
const soon = () => ({ deadline: Date.now() + 20000 })

const open = (socket) => new Echo(`unix:${socket}`, grpc.credentials.createInsecure(), {
  'grpc.max_receive_message_length': LARGE,
  'grpc.max_send_message_length': LARGE,
  // Otherwise channels to one address share a connection, and a test would use that of another test.
  'grpc.use_local_subchannel_pool': 1,
  'grpc.enable_retries': 0,
})

const unary = (client, name, request, metadata = new grpc.Metadata(), options = soon()) => {
  const seen = {}
  return new Promise((resolve) => {
    seen.call = client[name](request, metadata, options, (error, reply) => { seen.error = error; seen.reply = reply })
    seen.call.on('metadata', (first) => { seen.first = text(first) })
    seen.call.on('status', ({ code, details, metadata: last }) => {
      // The callback and the status come in either order.
      setImmediate(() => resolve({ ...seen, code, details, last: text(last) }))
    })
  })
}

const streamed = (call, each = () => {}) => new Promise((resolve) => {
  const values = []
  call.on('data', ({ value }) => { values.push(value); each(value) })
  call.on('error', () => {})
  call.on('status', ({ code, details }) => setImmediate(() => resolve({ values, code, details })))
})

const bytes = (size, fill = 'u') => ({ value: Buffer.alloc(size, fill) })

const scenarios = {
  async sizes(client, sizes) {
    const up = [], down = []
    for (const size of sizes) {
      up.push((await unary(client, 'size', bytes(size))).reply.value)
      down.push((await unary(client, 'make', { value: size })).reply.value.length)
    }
    return [up, down]
  },
  async count(client, number) {
    return streamed(client.count({ value: number }, soon()))
  },
  async streams(client, sizes) {
    const both = client.both(new grpc.Metadata(), soon())
    const back = streamed(both)
    const total = await new Promise((resolve) => {
      const call = client.total(new grpc.Metadata(), soon(), (error, reply) => resolve(error ? error.code : reply.value))
      for (const size of sizes) { call.write(bytes(size)); both.write(bytes(size)) }
      call.end()
      both.end()
    })
    return [total, (await back).values.map((value) => value.length)]
  },
  async many(client, number) {
    const asked = Array.from({ length: number }, (_, n) => unary(client, 'unary', { value: Buffer.from(`${n}`) }))
    return (await Promise.all(asked)).map(({ code, reply }) => code === 0 ? Number(reply.value.toString()) : -code)
  },
  async statuses(client) {
    const seen = []
    for (let code = 1; code <= 16; code++) {
      const { code: got, details } = await unary(client, 'status', { value: code })
      seen.push([got, details])
    }
    return seen
  },
  async late(client) {
    return streamed(client.late_status({ value: 1 }, soon()))
  },
  async metadata(client) {
    const sent = new grpc.Metadata()
    sent.add('a', 'b')
    sent.add('a', 'c')
    sent.add('z-bin', Buffer.from([0, 1, 255]))
    const { reply, first, last, code } = await unary(client, 'metadata', bytes(0), sent)
    const own = first.filter(([key]) => key.startsWith('first'))
    return { code, heard: reply.value.toString(), first: own, last }
  },
  async unknown(client) {
    const { code, details } = await unary(client, 'nothing', bytes(0))
    return [code, details]
  },
  async deadline(client) {
    const hung = await unary(client, 'hang', bytes(0), new grpc.Metadata(), { deadline: Date.now() + 400 })
    const next = await unary(client, 'unary', bytes(4))
    return [hung.code, next.reply.value.toString()]
  },
  async cancel(client) {
    const call = client.hang(bytes(0), new grpc.Metadata(), soon(), () => {})
    const ended = new Promise((resolve) => call.on('status', ({ code }) => resolve(code)))
    // The server reads one connection in order, so the first call has arrived before it is cancelled.
    const before = await unary(client, 'unary', bytes(1))
    call.cancel()
    const code = await ended
    const next = await unary(client, 'unary', bytes(4))
    return [before.code, code, next.reply.value.toString()]
  },
  async large(client, size) {
    const refused = await unary(client, 'size', bytes(size))
    const next = await unary(client, 'size', bytes(900))
    return [refused.code, refused.details, next.reply.value]
  },
  // A call that began before the server stops runs to its end, and the next one finds no listener.
  async stopping(client) {
    const both = client.both(new grpc.Metadata(), soon())
    const ended = streamed(both, (value) => { if (value.length === 1) say({ begun: true }) })
    both.write(bytes(1))
    await new Promise((resolve) => { goOn = resolve })
    both.write(bytes(70000))
    both.end()
    const { code, values } = await ended
    const next = await unary(client, 'unary', bytes(1))
    return [code, values.map((value) => value.length), next.code]
  },
}

// Sends requests that are not gRPC with Node's own HTTP/2 client; returns each HTTP status, and whether a PING works.
const http = async (socket, requests) => {
  const session = http2.connect('http://localhost', { createConnection: () => net.connect(socket) })
  const ask = (headers) => new Promise((resolve, reject) => {
    const request = session.request(headers)
    let trailers = {}
    request.on('response', (first) => {
      request.on('trailers', (last) => { trailers = last })
      request.on('close', () => resolve([first[':status'], { ...first, ...trailers }['grpc-status'] ?? null]))
      request.resume()
    })
    request.on('error', reject)
    request.end(headers[':method'] === 'POST' ? Buffer.alloc(5) : undefined)
  })
  const answers = []
  for (const headers of requests) answers.push(await ask(headers))
  const pinged = await new Promise((resolve) => session.ping((error) => resolve(error === null)))
  session.close()
  return [answers, pinged]
}

let goOn = () => {}

orders(async (order) => {
  if (order === 'go on') return goOn()
  const [scenario, socket, ...rest] = order
  if (scenario === 'http') return say({ result: await http(socket, ...rest) })
  const client = open(socket)
  const result = await scenarios[scenario](client, ...rest)
  client.close()
  return say({ result })
})

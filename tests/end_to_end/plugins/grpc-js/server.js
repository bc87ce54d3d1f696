// A DRA driver on @grpc/grpc-js: `node server.js SOCKET NAME`. It prints a JSON line when it listens and for each call.
'use strict'

const fs = require('node:fs')
const path = require('node:path')
const grpc = require('@grpc/grpc-js')
const loader = require('@grpc/proto-loader')

const [socket, name] = process.argv.slice(2)
const proto = path.join(__dirname, '../../../../protocol/proto/pluginregistration.proto')
const { pluginregistration } = grpc.loadPackageDefinition(loader.loadSync(proto, { keepCase: true }))

// Unbuffered: a killed process would lose a line in a buffer.
const say = (line) => fs.writeSync(1, JSON.stringify(line) + '\n')

const server = new grpc.Server()
server.addService(pluginregistration.Registration.service, {
  GetInfo(call, reply) {
    say({ call: 'GetInfo' })
    reply(null, { type: 'DRAPlugin', name, supported_versions: ['v1.DRAPlugin'] })
  },
  NotifyRegistrationStatus(call, reply) {
    const { plugin_registered, error } = call.request
    say({ call: 'NotifyRegistrationStatus', plugin_registered: plugin_registered || false, error: error || '' })
    reply(null, {})
  },
})
process.on('SIGTERM', () => server.tryShutdown(() => process.exit(0)))
// A socket that a killed predecessor left behind is replaced.
fs.rmSync(socket, { force: true })
server.bindAsync(`unix:${socket}`, grpc.ServerCredentials.createInsecure(), (error) => {
  if (error) throw error
  say({ listening: socket })
})

// A CSI driver on @grpc/grpc-js: `node csi.js SOCKET NAME ENDPOINT NODE_ID`.
// The docstring of csi_drivers.py describes it, and the lines that it prints.
'use strict'

const fs = require('node:fs')
const path = require('node:path')
const grpc = require('@grpc/grpc-js')
const loader = require('@grpc/proto-loader')

const [socket, name, endpoint, node_id] = process.argv.slice(2)
const protos = ['pluginregistration.proto', 'csi_v1.proto'].map((file) =>
  path.join(__dirname, '../../../../protocol/proto', file))
const { pluginregistration, csi } = grpc.loadPackageDefinition(loader.loadSync(protos, { keepCase: true }))

// Unbuffered: a killed process would lose a line in a buffer.
const say = (line) => fs.writeSync(1, JSON.stringify(line) + '\n')

const answering = (answers) => Object.fromEntries(Object.entries(answers).map(([method, answer]) => [
  method,
  (call, reply) => {
    say({ call: method })
    reply(null, answer)
  },
]))

const driver = new grpc.Server()
driver.addService(csi.v1.Identity.service, answering({
  GetPluginInfo: { name, vendor_version: '2.1.0' },
  GetPluginCapabilities: { capabilities: [{ service: { type: 'CONTROLLER_SERVICE' } }] },
  Probe: {},
}))
driver.addService(csi.v1.Node.service, answering({
  NodeGetCapabilities: { capabilities: [{ rpc: { type: 'STAGE_UNSTAGE_VOLUME' } }] },
  NodeGetInfo: { node_id, max_volumes_per_node: 16, accessible_topology: { segments: { zone: 'z1' } } },
}))

const registrar = new grpc.Server()
registrar.addService(pluginregistration.Registration.service, {
  GetInfo(call, reply) {
    say({ call: 'GetInfo' })
    reply(null, { type: 'CSIPlugin', name, endpoint, supported_versions: ['1.0.0'] })
  },
  NotifyRegistrationStatus(call, reply) {
    const { plugin_registered, error } = call.request
    say({ call: 'NotifyRegistrationStatus', plugin_registered: plugin_registered || false, error: error || '' })
    reply(null, {})
  },
})

const listen = (server, where) => new Promise((resolve, reject) => {
  // A socket that a killed predecessor left behind is replaced.
  fs.rmSync(where, { force: true })
  server.bindAsync(`unix:${where}`, grpc.ServerCredentials.createInsecure(), (error) =>
    error ? reject(error) : resolve())
})

const main = async () => {
  await listen(driver, endpoint)
  await listen(registrar, socket)
  say({ listening: socket })
}
process.on('SIGTERM', () => process.exit(0))
main()

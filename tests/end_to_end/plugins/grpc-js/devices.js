// A device plugin on @grpc/grpc-js: `node devices.js DIRECTORY FILE RESOURCE [options]`.
// The docstring of device_plugins.py describes the options, the signals and the lines that it prints.
'use strict'

const fs = require('node:fs')
const path = require('node:path')
const { parseArgs } = require('node:util')
const grpc = require('@grpc/grpc-js')
const loader = require('@grpc/proto-loader')

const PERIOD = 100
const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    route: { type: 'string', default: 'call' },
    devices: { type: 'string', default: '4' },
    'pre-start': { type: 'boolean', default: false },
    preferred: { type: 'boolean', default: false },
    plain: { type: 'boolean', default: false },
  },
})
const [directory, file, resource] = positionals
const socket = path.join(directory, file)
const protos = ['pluginregistration.proto', 'deviceplugin_v1beta1.proto'].map((name) =>
  path.join(__dirname, '../../../../protocol/proto', name))
const { pluginregistration, v1beta1 } = grpc.loadPackageDefinition(
  loader.loadSync(protos, { keepCase: true, defaults: true }))

// Unbuffered: a killed process would lose a line in a buffer.
const say = (line) => fs.writeSync(1, JSON.stringify(line) + '\n')
const inode = () => fs.lstatSync(socket, { throwIfNoEntry: false })?.ino

const ids = Array.from({ length: Number(options.devices) }, (_, number) => `${resource.split('/').pop()}-${number}`)
let unhealthy = []
const streams = new Set()

const send = (stream) => {
  const devices = ids.map((ID, number) => ({
    ID, health: unhealthy.includes(ID) ? 'Unhealthy' : 'Healthy', topology: { nodes: [{ ID: number % 2 }] },
  }))
  stream.write({ devices })
  say({ listed: ids.length, unhealthy: unhealthy.length })
}
const turn = (sick) => {
  unhealthy = sick
  streams.forEach(send)
}

const devicePlugin = {
  GetDevicePluginOptions(call, reply) {
    say({ call: 'GetDevicePluginOptions' })
    reply(null, { pre_start_required: options['pre-start'], get_preferred_allocation_available: options.preferred })
  },
  ListAndWatch(stream) {
    streams.add(stream)
    say({ call: 'ListAndWatch', streams: streams.size })
    stream.on('cancelled', () => {
      streams.delete(stream)
      say({ ended: 'ListAndWatch', streams: streams.size })
    })
    send(stream)
  },
  GetPreferredAllocation(call, reply) {
    say({ call: 'GetPreferredAllocation' })
    // What must be included comes first, then what is available; each device once.
    const container_responses = call.request.container_requests.map((one) => ({
      deviceIDs: [...new Set([...one.must_include_deviceIDs, ...one.available_deviceIDs])].slice(0, one.allocation_size),
    }))
    reply(null, { container_responses })
  },
  Allocate(call, reply) {
    const container_responses = call.request.container_requests.map(({ devices_ids }) => {
      say({ call: 'Allocate', ids: devices_ids })
      return {
        envs: { VISIBLE_DEVICES: devices_ids.join() },
        devices: devices_ids.map((ID) => ({
          container_path: options.plain ? '/dev/null' : `/dev/${ID}`, host_path: '/dev/null', permissions: 'rw',
        })),
      }
    })
    reply(null, { container_responses })
  },
  PreStartContainer(call, reply) {
    say({ call: 'PreStartContainer', ids: call.request.devices_ids })
    reply(null, {})
  },
}

const registration = {
  GetInfo(call, reply) {
    say({ call: 'GetInfo' })
    reply(null, { type: 'DevicePlugin', name: resource, supported_versions: ['v1beta1'] })
  },
  NotifyRegistrationStatus(call, reply) {
    const { plugin_registered, error } = call.request
    say({ call: 'NotifyRegistrationStatus', plugin_registered, error })
    reply(null, {})
  },
}

// Calls Register on kubelet.sock until it is answered with OK, unless the server that it announces has ended.
const register = (server) => {
  if (server !== serving) return
  const address = `unix:${path.join(directory, 'kubelet.sock')}`
  const client = new v1beta1.Registration(address, grpc.credentials.createInsecure())
  const request = { version: 'v1beta1', endpoint: file, resource_name: resource }
  client.Register(request, { deadline: Date.now() + 20000 }, (error) => {
    client.close()
    const code = error ? Object.keys(grpc.status).find((name) => grpc.status[name] === error.code) : 'OK'
    say({ call: 'Register', registered: !error, code, error: error ? error.details : '' })
    if (error) setTimeout(register, PERIOD, server)
  })
}

let serving
let bound
const start = () => {
  const server = new grpc.Server()
  server.addService(v1beta1.DevicePlugin.service, devicePlugin)
  if (options.route === 'socket') server.addService(pluginregistration.Registration.service, registration)
  // A socket that a killed predecessor left behind is replaced.
  fs.rmSync(socket, { force: true })
  server.bindAsync(`unix:${socket}`, grpc.ServerCredentials.createInsecure(), (error) => {
    if (error) throw error
    serving = server
    bound = inode()
    say({ listening: socket })
    if (options.route === 'call') register(server)
  })
}
const restart = () => {
  say({ lost: socket })
  const server = serving
  serving = undefined
  server.forceShutdown()
  start()
}

process.on('SIGUSR1', () => turn(ids.slice(0, 1)))
process.on('SIGUSR2', () => turn([]))
process.on('SIGHUP', () => streams.forEach((stream) => {
  streams.delete(stream)
  stream.emit('error', { code: grpc.status.UNAVAILABLE, details: 'the stream was told to end' })
  say({ ended: 'ListAndWatch', streams: streams.size })
}))
process.on('SIGTERM', () => {
  // While streams are open, an orderly shutdown would wait.
  if (serving && inode() === bound) fs.rmSync(socket, { force: true })
  process.exit(0)
})
setInterval(() => serving && inode() !== bound && restart(), PERIOD)
start()

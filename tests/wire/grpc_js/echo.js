'use strict'
// What the server and the client share: the service, and JSON lines in both directions.

const fs = require('node:fs')
const path = require('node:path')
const readline = require('node:readline')
const grpc = require('@grpc/grpc-js')
const loader = require('@grpc/proto-loader')

const options = { keepCase: true, defaults: true }
const { Echo } = grpc.loadPackageDefinition(loader.loadSync(path.join(__dirname, 'echo.proto'), options)).test

const say = (line) => fs.writeSync(1, JSON.stringify(line) + '\n')

// The process ends with its standard input, so that it does not outlive the tests.
const orders = (take) => {
  readline.createInterface({ input: process.stdin }).on('line', (line) => take(JSON.parse(line)))
  process.stdin.on('end', () => process.exit(0))
}

const text = (metadata) =>
  Object.entries(metadata.toJSON()).flatMap(([key, values]) =>
    values.map((value) => [key, Buffer.isBuffer(value) ? { hex: value.toString('hex') } : value]))

module.exports = { Echo, grpc, orders, say, text }

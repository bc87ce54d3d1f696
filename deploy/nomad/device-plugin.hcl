# A piece of the configuration of an agent of Nomad: the devices of the pool "nomad" of this node's plugind.
# The directory has the program under the name of the block:
#   ln -s /usr/bin/plugind /opt/nomad/plugins/plugind
plugin_dir = "/opt/nomad/plugins"

plugin "plugind" {
  # The pool in the words of plugind's own --pool. One more --pool for each further resource.
  args = ["nomad-device", "--pool", "nomad=example.com/gpu"]
  # To end the leases of tasks that have ended, by the API of this agent:
  # args = ["nomad-device", "--pool", "nomad=example.com/gpu",
  #         "--reconcile", "--address", "http://127.0.0.1:4646", "--token-file", "/etc/nomad.d/plugind.token"]
  config {}
}

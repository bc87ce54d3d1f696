// An agent of Nomad as a device plugin sees it: `nomad_agent PLUGIN ARGUMENTS...` starts the plugin by go-plugin, makes
// the calls of Nomad's two services, ends the plugin, and prints one line of JSON for each step.
package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"time"

	plugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	base "plugind/nomadbase"
	device "plugind/nomaddevice"
)

// No step takes as long, even on a busy machine.
const deadline = 60 * time.Second

func say(line map[string]interface{}) {
	text, err := json.Marshal(line)
	must(err)
	os.Stdout.Write(append(text, '\n'))
}

func must(err error) {
	if err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		plugin.CleanupClients()
		os.Exit(1)
	}
}

// Gives the connection to the plugin.
type connected struct {
	plugin.NetRPCUnsupportedPlugin
}

func (connected) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error {
	return nil
}

func (connected) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, to *grpc.ClientConn) (interface{}, error) {
	return to, nil
}

func main() {
	client := plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig: plugin.HandshakeConfig{
			ProtocolVersion:  2,
			MagicCookieKey:   "NOMAD_PLUGIN_MAGIC_COOKIE",
			MagicCookieValue: "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255",
		},
		Plugins:          map[string]plugin.Plugin{"device": connected{}},
		Cmd:              exec.Command(os.Args[1], os.Args[2:]...),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		Managed:          true,
	})
	protocol, err := client.Client()
	must(err)
	must(protocol.Ping())
	say(map[string]interface{}{"ping": "ok"})
	dispensed, err := protocol.Dispense("device")
	must(err)
	to := dispensed.(*grpc.ClientConn)
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	ask(ctx, base.NewBasePluginClient(to), device.NewDevicePluginClient(to))
	client.Kill()
	say(map[string]interface{}{"killed": client.Exited()})
}

func ask(ctx context.Context, asBase base.BasePluginClient, asDevice device.DevicePluginClient) {
	info, err := asBase.PluginInfo(ctx, &base.PluginInfoRequest{})
	must(err)
	say(map[string]interface{}{"info": info.Name, "type": info.Type.String(), "versions": info.PluginApiVersions})
	schema, err := asBase.ConfigSchema(ctx, &base.ConfigSchemaRequest{})
	must(err)
	if schema.Spec.GetObject() != nil {
		say(map[string]interface{}{"schema": "object"})
	}
	_, err = asBase.SetConfig(ctx, &base.SetConfigRequest{PluginApiVersion: info.PluginApiVersions[0]})
	must(err)
	say(map[string]interface{}{"configured": true})
	found, err := asDevice.Fingerprint(ctx, &device.FingerprintRequest{})
	must(err)
	list, err := found.Recv()
	must(err)
	var ids []string
	for _, group := range list.DeviceGroup {
		for _, one := range group.Devices {
			if one.Healthy {
				ids = append(ids, one.ID)
			}
			name := group.Vendor + "/" + group.DeviceType + "/" + group.DeviceName
			say(map[string]interface{}{"device": name, "id": one.ID, "unhealthy": one.HealthDescription})
		}
	}
	// The task that has all of them has ended when another one is to have the first.
	for _, wanted := range [][]string{ids, ids[:1]} {
		reserved, err := asDevice.Reserve(ctx, &device.ReserveRequest{DeviceIds: wanted})
		must(err)
		given := reserved.ContainerRes.Envs
		say(map[string]interface{}{"reserved": given["PLUGIND_DEVICES"], "lease": given["PLUGIND_LEASE"]})
	}
	stats, err := asDevice.Stats(ctx, &device.StatsRequest{CollectionInterval: &device.Duration{Seconds: 1}})
	must(err)
	said, err := stats.Recv()
	must(err)
	for id, one := range said.Groups[0].InstanceStats {
		say(map[string]interface{}{"stats": id, "summary": one.Summary.StringVal})
	}
}

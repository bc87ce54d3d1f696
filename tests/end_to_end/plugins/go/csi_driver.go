// A CSI driver on grpc-go: `csi_driver SOCKET NAME ENDPOINT NODE_ID`.
// The docstring of csi_drivers.py describes it, and the lines that it prints.
package main

import (
	"context"
	"encoding/json"
	"net"
	"os"

	"google.golang.org/grpc"

	csi "plugind/csi"
	registration "plugind/pluginregistration"
)

// One unbuffered write: a killed process would lose a line in a buffer.
func say(line map[string]interface{}) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	os.Stdout.Write(append(text, '\n'))
}

func called(method string) {
	say(map[string]interface{}{"call": method})
}

type driver struct {
	name, endpoint, nodeID string
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	called("GetPluginInfo")
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "2.1.0"}, nil
}

func (d *driver) GetPluginCapabilities(
	context.Context, *csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	called("GetPluginCapabilities")
	controller := &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}
	capability := &csi.PluginCapability{Type: &csi.PluginCapability_Service_{Service: controller}}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{capability}}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	called("Probe")
	return &csi.ProbeResponse{}, nil
}

func (d *driver) NodeGetCapabilities(
	context.Context, *csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	called("NodeGetCapabilities")
	stages := &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}
	capability := &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: stages}}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{capability}}, nil
}

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	called("NodeGetInfo")
	topology := &csi.Topology{Segments: map[string]string{"zone": "z1"}}
	return &csi.NodeGetInfoResponse{NodeId: d.nodeID, MaxVolumesPerNode: 16, AccessibleTopology: topology}, nil
}

func (d *driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	called("GetInfo")
	return &registration.PluginInfo{
		Type: "CSIPlugin", Name: d.name, Endpoint: d.endpoint, SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (d *driver) NotifyRegistrationStatus(
	_ context.Context, told *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	say(map[string]interface{}{
		"call": "NotifyRegistrationStatus", "plugin_registered": told.PluginRegistered, "error": told.Error,
	})
	return &registration.RegistrationStatusResponse{}, nil
}

// Listens where a killed predecessor may have left a socket.
func serve(server *grpc.Server, where string) {
	os.Remove(where)
	listener, err := net.Listen("unix", where)
	if err != nil {
		panic(err)
	}
	go server.Serve(listener)
}

func main() {
	d := &driver{name: os.Args[2], endpoint: os.Args[3], nodeID: os.Args[4]}
	services, registrar := grpc.NewServer(), grpc.NewServer()
	csi.RegisterIdentityServer(services, d)
	csi.RegisterNodeServer(services, d)
	registration.RegisterRegistrationServer(registrar, d)
	serve(services, d.endpoint)
	serve(registrar, os.Args[1])
	say(map[string]interface{}{"listening": os.Args[1]})
	select {}
}

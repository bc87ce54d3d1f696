// A DRA driver on grpc-go: `dra_driver [options] NAME REGISTRY DIRECTORY`.
// The docstring of dra_drivers.py describes the options, the commands and the lines that it prints.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"syscall"

	"github.com/golang/protobuf/proto"
	"google.golang.org/grpc"

	dra "plugind/dra"
	drabeta "plugind/drabeta"
	health "plugind/drahealth"
	healthalpha "plugind/drahealthalpha"
	registration "plugind/pluginregistration"
)

// One unbuffered write: a killed process would lose a line in a buffer.
func say(line map[string]interface{}) {
	text, err := json.Marshal(line)
	must(err)
	os.Stdout.Write(append(text, '\n'))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// The versions of an API differ in nothing but the name.
func convert(from, to proto.Message) {
	bytes, err := proto.Marshal(from)
	must(err)
	must(proto.Unmarshal(bytes, to))
}

type driver struct {
	name, endpoint string
	versions       []string
	// Serialises the calls to all instances of a rolling update; empty without one.
	lock    string
	mutex   sync.Mutex
	devices map[string]*health.DeviceHealth
	// Closed at the next change of the devices.
	changed chan struct{}
}

// --- claims ---

func (d *driver) serialized(work func()) {
	if d.lock != "" {
		file, err := os.OpenFile(d.lock, os.O_RDWR|os.O_CREATE, 0666)
		must(err)
		defer file.Close()
		must(syscall.Flock(int(file.Fd()), syscall.LOCK_EX))
	}
	work()
}

func (d *driver) called(service, method string, claims []*dra.Claim) {
	uids := []string{}
	for _, claim := range claims {
		uids = append(uids, claim.Uid)
	}
	say(map[string]interface{}{"call": method, "service": service, "claims": uids})
}

func (d *driver) prepare(
	service string, request *dra.NodePrepareResourcesRequest,
) (*dra.NodePrepareResourcesResponse, error) {
	d.called(service, "NodePrepareResources", request.Claims)
	answer := &dra.NodePrepareResourcesResponse{Claims: map[string]*dra.NodePrepareResourceResponse{}}
	for _, claim := range request.Claims {
		if claim.Name == "missing" {
			return nil, fmt.Errorf("get resource claims: retrieve claim %s/%s: not found", claim.Namespace, claim.Name)
		}
	}
	d.serialized(func() {
		for _, claim := range request.Claims {
			answer.Claims[claim.Uid] = prepared(claim)
		}
	})
	return answer, nil
}

func prepared(claim *dra.Claim) *dra.NodePrepareResourceResponse {
	if claim.Name == "broken" {
		return &dra.NodePrepareResourceResponse{Error: "the device is broken"}
	}
	device := &dra.Device{
		RequestNames: []string{"gpu"}, PoolName: "pool-0", DeviceName: "gpu-0",
		CdiDeviceIds: []string{"example.com/gpu=" + claim.Name},
	}
	return &dra.NodePrepareResourceResponse{Devices: []*dra.Device{device}}
}

func (d *driver) unprepare(
	service string, request *dra.NodeUnprepareResourcesRequest,
) (*dra.NodeUnprepareResourcesResponse, error) {
	d.called(service, "NodeUnprepareResources", request.Claims)
	answer := &dra.NodeUnprepareResourcesResponse{Claims: map[string]*dra.NodeUnprepareResourceResponse{}}
	d.serialized(func() {
		for _, claim := range request.Claims {
			answer.Claims[claim.Uid] = &dra.NodeUnprepareResourceResponse{}
		}
	})
	return answer, nil
}

type pluginV1 struct{ *driver }

func (p pluginV1) NodePrepareResources(
	_ context.Context, request *dra.NodePrepareResourcesRequest,
) (*dra.NodePrepareResourcesResponse, error) {
	return p.prepare("v1.DRAPlugin", request)
}

func (p pluginV1) NodeUnprepareResources(
	_ context.Context, request *dra.NodeUnprepareResourcesRequest,
) (*dra.NodeUnprepareResourcesResponse, error) {
	return p.unprepare("v1.DRAPlugin", request)
}

type pluginV1Beta1 struct{ *driver }

func (p pluginV1Beta1) NodePrepareResources(
	_ context.Context, request *drabeta.NodePrepareResourcesRequest,
) (*drabeta.NodePrepareResourcesResponse, error) {
	asked, said := &dra.NodePrepareResourcesRequest{}, &drabeta.NodePrepareResourcesResponse{}
	convert(request, asked)
	answer, err := p.prepare("v1beta1.DRAPlugin", asked)
	if err == nil {
		convert(answer, said)
	}
	return said, err
}

func (p pluginV1Beta1) NodeUnprepareResources(
	_ context.Context, request *drabeta.NodeUnprepareResourcesRequest,
) (*drabeta.NodeUnprepareResourcesResponse, error) {
	asked, said := &dra.NodeUnprepareResourcesRequest{}, &drabeta.NodeUnprepareResourcesResponse{}
	convert(request, asked)
	answer, err := p.unprepare("v1beta1.DRAPlugin", asked)
	if err == nil {
		convert(answer, said)
	}
	return said, err
}

// --- the health of devices ---

func (d *driver) report(name string, status health.HealthStatus, message string) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	pool, device, _ := strings.Cut(name, "/")
	d.devices[name] = &health.DeviceHealth{
		Device: &health.DeviceIdentifier{PoolName: pool, DeviceName: device},
		Health: status, Message: message, HealthCheckTimeoutSeconds: 3600,
	}
	close(d.changed)
	d.changed = make(chan struct{})
}

func (d *driver) list() (*health.NodeWatchResourcesResponse, chan struct{}) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	answer := &health.NodeWatchResourcesResponse{}
	for _, device := range d.devices {
		answer.Devices = append(answer.Devices, device)
	}
	sort.Slice(answer.Devices, func(i, j int) bool {
		return answer.Devices[i].Device.DeviceName < answer.Devices[j].Device.DeviceName
	})
	return answer, d.changed
}

func (d *driver) watch(service string, ctx context.Context, send func(*health.NodeWatchResourcesResponse) error) error {
	say(map[string]interface{}{"call": "NodeWatchResources", "service": service})
	for {
		answer, changed := d.list()
		if err := send(answer); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

type healthV1 struct{ *driver }

func (h healthV1) NodeWatchResources(
	_ *health.NodeWatchResourcesRequest, stream health.DRAResourceHealth_NodeWatchResourcesServer,
) error {
	return h.watch("v1.DRAResourceHealth", stream.Context(), stream.Send)
}

type healthV1Alpha1 struct{ *driver }

func (h healthV1Alpha1) NodeWatchResources(
	_ *healthalpha.NodeWatchResourcesRequest, stream healthalpha.DRAResourceHealth_NodeWatchResourcesServer,
) error {
	return h.watch("v1alpha1.DRAResourceHealth", stream.Context(), func(list *health.NodeWatchResourcesResponse) error {
		said := &healthalpha.NodeWatchResourcesResponse{}
		convert(list, said)
		return stream.Send(said)
	})
}

// --- the registrar ---

func (d *driver) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	say(map[string]interface{}{"call": "GetInfo"})
	return &registration.PluginInfo{
		Type: "DRAPlugin", Name: d.name, Endpoint: d.endpoint, SupportedVersions: d.versions,
	}, nil
}

func (d *driver) NotifyRegistrationStatus(
	_ context.Context, told *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	say(map[string]interface{}{
		"call": "NotifyRegistrationStatus", "plugin_registered": told.PluginRegistered, "error": told.Error,
	})
	if !told.PluginRegistered {
		return nil, errors.New("failed registration process: " + told.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// --- the process ---

// Listens where a killed predecessor may have left a socket.
func serve(server *grpc.Server, where string) {
	os.Remove(where)
	listener, err := net.Listen("unix", where)
	must(err)
	go server.Serve(listener)
	say(map[string]interface{}{"listening": where})
}

func (d *driver) services() *grpc.Server {
	server := grpc.NewServer()
	dra.RegisterDRAPluginServer(server, pluginV1{d})
	drabeta.RegisterDRAPluginServer(server, pluginV1Beta1{d})
	health.RegisterDRAResourceHealthServer(server, healthV1{d})
	healthalpha.RegisterDRAResourceHealthServer(server, healthV1Alpha1{d})
	return server
}

func (d *driver) obey(line string, services *grpc.Server) {
	words := strings.SplitN(line+"  ", " ", 3)
	switch words[0] {
	case "listen":
		serve(services, d.endpoint)
	case "healthy":
		d.report(words[1], health.HealthStatus_HEALTHY, strings.TrimSpace(words[2]))
	case "unhealthy":
		d.report(words[1], health.HealthStatus_UNHEALTHY, strings.TrimSpace(words[2]))
	default:
		panic("unknown command " + line)
	}
}

func main() {
	uid := flag.String("uid", "", "")
	late := flag.Bool("late", false, "")
	versions := flag.String("versions", "v1.DRAPlugin,v1beta1.DRAPlugin,v1alpha1.DRAResourceHealth", "")
	flag.Parse()
	name, registry, directory := flag.Arg(0), flag.Arg(1), flag.Arg(2)
	part := ""
	d := &driver{
		name: name, versions: strings.Split(*versions, ","),
		devices: map[string]*health.DeviceHealth{}, changed: make(chan struct{}),
	}
	if *uid != "" {
		part, d.lock = "-"+*uid, filepath.Join(directory, "serialize.lock")
	}
	d.endpoint = filepath.Join(directory, "dra"+part+".sock")
	services, registrar := d.services(), grpc.NewServer()
	registration.RegisterRegistrationServer(registrar, d)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	if !*late {
		serve(services, d.endpoint)
	}
	serve(registrar, filepath.Join(registry, name+part+"-reg.sock"))
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			d.obey(lines.Text(), services)
		}
	}()
	<-ended
	services.Stop()
	registrar.Stop()
}

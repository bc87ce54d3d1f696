// A device plugin on grpc-go: `devices DIRECTORY FILE RESOURCE [options]`.
// The docstring of device_plugins.py describes the options, the signals and the lines that it prints.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	device "plugind/deviceplugin"
	registration "plugind/pluginregistration"
)

// How often it looks at its socket file, and how long it waits before it registers again.
const period = 100 * time.Millisecond

// One unbuffered write: a killed process would lose a line in a buffer.
func say(line map[string]interface{}) {
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	os.Stdout.Write(append(text, '\n'))
}

// What an open stream is told: to list again, or to end.
type order bool

const (
	again order = true
	end   order = false
)

type plugin struct {
	resource  string
	ids       []string
	options   device.DevicePluginOptions
	plain     bool
	mutex     sync.Mutex
	unhealthy map[string]bool
	streams   map[chan order]bool
}

func (p *plugin) turn(healthy bool) {
	p.mutex.Lock()
	p.unhealthy = map[string]bool{}
	if !healthy && len(p.ids) > 0 {
		p.unhealthy[p.ids[0]] = true
	}
	p.mutex.Unlock()
	p.tell(again)
}

func (p *plugin) tell(what order) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for stream := range p.streams {
		stream <- what
	}
}

func (p *plugin) list() (*device.ListAndWatchResponse, int) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	answer := &device.ListAndWatchResponse{}
	for number, id := range p.ids {
		health := "Healthy"
		if p.unhealthy[id] {
			health = "Unhealthy"
		}
		topology := &device.TopologyInfo{Nodes: []*device.NUMANode{{ID: int64(number % 2)}}}
		answer.Devices = append(answer.Devices, &device.Device{ID: id, Health: health, Topology: topology})
	}
	return answer, len(p.unhealthy)
}

func (p *plugin) GetDevicePluginOptions(context.Context, *device.Empty) (*device.DevicePluginOptions, error) {
	say(map[string]interface{}{"call": "GetDevicePluginOptions"})
	return &p.options, nil
}

// Adds a stream or removes it, and returns how many there are then.
func (p *plugin) count(stream chan order, open bool) int {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if open {
		p.streams[stream] = true
	} else {
		delete(p.streams, stream)
	}
	return len(p.streams)
}

func (p *plugin) ListAndWatch(_ *device.Empty, stream device.DevicePlugin_ListAndWatchServer) error {
	orders := make(chan order, 1024)
	say(map[string]interface{}{"call": "ListAndWatch", "streams": p.count(orders, true)})
	defer func() {
		say(map[string]interface{}{"ended": "ListAndWatch", "streams": p.count(orders, false)})
	}()
	for {
		answer, unhealthy := p.list()
		if err := stream.Send(answer); err != nil {
			return err
		}
		say(map[string]interface{}{"listed": len(answer.Devices), "unhealthy": unhealthy})
		select {
		case what := <-orders:
			if what == end {
				return status.Error(codes.Unavailable, "the stream was told to end")
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// What must be included comes first, then what is available; each device once.
func (p *plugin) GetPreferredAllocation(
	_ context.Context, request *device.PreferredAllocationRequest,
) (*device.PreferredAllocationResponse, error) {
	say(map[string]interface{}{"call": "GetPreferredAllocation"})
	answer := &device.PreferredAllocationResponse{}
	for _, one := range request.ContainerRequests {
		seen, chosen := map[string]bool{}, []string{}
		for _, id := range append(append([]string{}, one.MustIncludeDeviceIDs...), one.AvailableDeviceIDs...) {
			if !seen[id] && len(chosen) < int(one.AllocationSize) {
				seen[id], chosen = true, append(chosen, id)
			}
		}
		container := &device.ContainerPreferredAllocationResponse{DeviceIDs: chosen}
		answer.ContainerResponses = append(answer.ContainerResponses, container)
	}
	return answer, nil
}

func (p *plugin) Allocate(_ context.Context, request *device.AllocateRequest) (*device.AllocateResponse, error) {
	answer := &device.AllocateResponse{}
	for _, one := range request.ContainerRequests {
		say(map[string]interface{}{"call": "Allocate", "ids": one.DevicesIds})
		container := &device.ContainerAllocateResponse{
			Envs: map[string]string{"VISIBLE_DEVICES": strings.Join(one.DevicesIds, ",")},
		}
		for _, id := range one.DevicesIds {
			inside := "/dev/" + id
			if p.plain {
				inside = "/dev/null"
			}
			node := &device.DeviceSpec{ContainerPath: inside, HostPath: "/dev/null", Permissions: "rw"}
			container.Devices = append(container.Devices, node)
		}
		answer.ContainerResponses = append(answer.ContainerResponses, container)
	}
	return answer, nil
}

func (p *plugin) PreStartContainer(
	_ context.Context, request *device.PreStartContainerRequest,
) (*device.PreStartContainerResponse, error) {
	say(map[string]interface{}{"call": "PreStartContainer", "ids": request.DevicesIds})
	return &device.PreStartContainerResponse{}, nil
}

func (p *plugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	say(map[string]interface{}{"call": "GetInfo"})
	info := &registration.PluginInfo{Type: "DevicePlugin", Name: p.resource, SupportedVersions: []string{"v1beta1"}}
	return info, nil
}

func (p *plugin) NotifyRegistrationStatus(
	_ context.Context, verdict *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	say(map[string]interface{}{
		"call": "NotifyRegistrationStatus", "plugin_registered": verdict.PluginRegistered, "error": verdict.Error,
	})
	return &registration.RegistrationStatusResponse{}, nil
}

// Calls Register once, and says what the answer is.
func (p *plugin) register(directory, file string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	dialer := func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(directory, "kubelet.sock"))
	}
	connection, err := grpc.DialContext(ctx, "kubelet.sock", grpc.WithInsecure(), grpc.WithContextDialer(dialer))
	if err == nil {
		defer connection.Close()
		request := &device.RegisterRequest{Version: "v1beta1", Endpoint: file, ResourceName: p.resource}
		_, err = device.NewRegistrationClient(connection).Register(ctx, request)
	}
	answer := status.Convert(err)
	code := answer.Code().String()
	if err == nil {
		answer, code = status.New(codes.OK, ""), "OK"
	}
	say(map[string]interface{}{
		"call": "Register", "registered": err == nil, "code": strings.ToUpper(code), "error": answer.Message(),
	})
	return err == nil
}

func inode(socket string) uint64 {
	var found syscall.Stat_t
	if syscall.Lstat(socket, &found) != nil {
		return 0
	}
	return found.Ino
}

// Serves, registers where that is the route, and returns once the socket file is gone.
func (p *plugin) live(directory, file, route string) error {
	socket := filepath.Join(directory, file)
	// A socket that a killed predecessor left behind is replaced.
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	// The file is removed where the process ends, and not if it is another one by then.
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	server := grpc.NewServer()
	device.RegisterDevicePluginServer(server, p)
	if route == "socket" {
		registration.RegisterRegistrationServer(server, p)
	}
	bound := inode(socket)
	go server.Serve(listener)
	defer server.Stop()
	say(map[string]interface{}{"listening": socket})
	registered := route == "socket"
	for inode(socket) == bound {
		registered = registered || p.register(directory, file)
		time.Sleep(period)
	}
	say(map[string]interface{}{"lost": socket})
	return nil
}

func main() {
	// Options may follow the arguments, as in the other programs.
	flags := flag.NewFlagSet("devices", flag.ExitOnError)
	route := flags.String("route", "call", "call or socket")
	count := flags.Int("devices", 4, "the number of devices")
	preStart := flags.Bool("pre-start", false, "PreStartContainer is required")
	preferred := flags.Bool("preferred", false, "GetPreferredAllocation is available")
	plain := flags.Bool("plain", false, "the devices are /dev/null inside of a container, too")
	directory, file, resource := os.Args[1], os.Args[2], os.Args[3]
	flags.Parse(os.Args[4:])
	p := &plugin{
		resource: resource,
		options: device.DevicePluginOptions{
			PreStartRequired: *preStart, GetPreferredAllocationAvailable: *preferred,
		},
		plain:     *plain,
		unhealthy: map[string]bool{},
		streams:   map[chan order]bool{},
	}
	for number := 0; number < *count; number++ {
		p.ids = append(p.ids, fmt.Sprintf("%s-%d", path.Base(resource), number))
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGHUP, syscall.SIGTERM)
	go func() {
		for received := range signals {
			switch received {
			case syscall.SIGUSR1:
				p.turn(false)
			case syscall.SIGUSR2:
				p.turn(true)
			case syscall.SIGHUP:
				p.tell(end)
			case syscall.SIGTERM:
				os.Remove(filepath.Join(directory, file))
				os.Exit(0)
			}
		}
	}()
	for {
		if err := p.live(directory, file, *route); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

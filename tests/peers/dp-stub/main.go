// Command dp-stub runs the kubelet's own stub of a device plugin, which its tests of device plugins use.
//
//	dp-stub [--devices N] [--kubelet PATH] [--pre-start] [--preferred] SOCKET RESOURCE
//
// With --kubelet it calls Register there, and again whenever that socket is created anew; it fails if the first call
// does. Otherwise it waits for calls of the registration service at its own socket. Its devices are NAME-0, NAME-1, …,
// where NAME is what follows the slash in RESOURCE. On standard input it takes lines with "healthy ID" and
// "unhealthy ID", each of which sends the list anew, once somebody watches it. It prints lines of JSON:
//
//	{"listening": SOCKET}
//	{"call": "Register", "registered": true, "error": ""}     the answer to its own first call
//	{"call": "Allocate", "ids": [[…], …]}                     the ids of each container
//	{"call": "GetPreferredAllocation", "ids": [[…], …]}       those that are available; it prefers the last ones
//	{"log": {"msg": …, …}}                                    what the stub logs, GetInfo and ListAndWatch among it
//
// SIGTERM and SIGINT end it; it removes its socket then.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/go-logr/logr/funcr"
	"k8s.io/klog/v2"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	stub "k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/plugin/v1beta1"
)

func main() {
	number := flag.Int("devices", 4, "the number of devices")
	kubelet := flag.String("kubelet", "", "the socket on which to call Register")
	preStart := flag.Bool("pre-start", false, "PreStartContainer is required")
	preferred := flag.Bool("preferred", false, "GetPreferredAllocation is available")
	flag.Parse()
	if flag.NArg() != 2 {
		fmt.Fprintln(os.Stderr, "dp-stub: expected SOCKET and RESOURCE")
		os.Exit(2)
	}
	socket, resource := flag.Arg(0), flag.Arg(1)
	logger := funcr.NewJSON(func(line string) { say(map[string]any{"log": json.RawMessage(line)}) }, funcr.Options{})
	klog.SetLogger(logger)
	plugin := stub.NewDevicePluginStub(logger, devices(resource, *number, nil), socket, resource, *preStart, *preferred)
	plugin.SetAllocFunc(allocate)
	plugin.SetGetPreferredAllocFunc(prefer)
	if err := run(klog.NewContext(context.Background(), logger), plugin, socket, resource, *kubelet, *number); err != nil {
		fmt.Fprintln(os.Stderr, "dp-stub:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, plugin *stub.Stub, socket, resource, kubelet string, number int) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	if err := plugin.Start(ctx); err != nil {
		return err
	}
	say(map[string]any{"listening": socket})
	if kubelet != "" {
		err := plugin.Register(ctx, kubelet, resource, "")
		say(map[string]any{"call": "Register", "registered": err == nil, "error": text(err)})
		if err != nil {
			return err
		}
		go plugin.Watch(ctx, kubelet, resource, "")
	}
	go follow(plugin, resource, number)
	<-signals
	// The stub's Stop closes the watcher that its Watch reads, which would log errors from then on without a pause.
	return os.Remove(socket)
}

// follow takes the commands on standard input.
func follow(plugin *stub.Stub, resource string, number int) {
	unhealthy := map[string]bool{}
	scanner := bufio.NewScanner(os.Stdin)
	for scanner.Scan() {
		how, id, _ := strings.Cut(scanner.Text(), " ")
		unhealthy[id] = how == "unhealthy"
		plugin.Update(devices(resource, number, unhealthy))
	}
}

func devices(resource string, number int, unhealthy map[string]bool) []*api.Device {
	made := []*api.Device{}
	for index := range number {
		device := &api.Device{ID: fmt.Sprintf("%s-%d", path.Base(resource), index), Health: api.Healthy}
		if unhealthy[device.ID] {
			device.Health = api.Unhealthy
		}
		made = append(made, device)
	}
	return made
}

func allocate(request *api.AllocateRequest, _ map[string]*api.Device) (*api.AllocateResponse, error) {
	ids, response := [][]string{}, &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		ids = append(ids, container.DevicesIds)
		envs := map[string]string{"DP_STUB": strings.Join(container.DevicesIds, ",")}
		response.ContainerResponses = append(response.ContainerResponses, &api.ContainerAllocateResponse{Envs: envs})
	}
	say(map[string]any{"call": "Allocate", "ids": ids})
	return response, nil
}

func prefer(request *api.PreferredAllocationRequest, _ map[string]*api.Device) (*api.PreferredAllocationResponse, error) {
	ids, response := [][]string{}, &api.PreferredAllocationResponse{}
	for _, container := range request.ContainerRequests {
		available := slices.Sorted(slices.Values(container.AvailableDeviceIDs))
		ids = append(ids, available)
		last := available[len(available)-int(container.AllocationSize):]
		response.ContainerResponses = append(
			response.ContainerResponses, &api.ContainerPreferredAllocationResponse{DeviceIDs: last})
	}
	say(map[string]any{"call": "GetPreferredAllocation", "ids": ids})
	return response, nil
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

var printing sync.Mutex

func say(line map[string]any) {
	printing.Lock()
	defer printing.Unlock()
	_ = json.NewEncoder(os.Stdout).Encode(line)
}

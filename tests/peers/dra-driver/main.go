// Command dra-driver is a DRA driver on Kubernetes' own helper (kubeletplugin.Start), with a fake clientset as its cluster.
//
//	dra-driver [--uid U] NAME REGISTRY DIRECTORY
//
// Its services are in DIRECTORY and its registrar is in REGISTRY, both with the names that the helper gives them. With
// --uid it is the instance U of a rolling update. Each claim that it is asked for is in the cluster, allocated with the
// device "device" of the pool "pool", but one that is named "missing"; the preparation of one named "broken" fails. On
// standard input it takes lines with "healthy DEVICE" and "unhealthy DEVICE", which it reports as its devices' health. It
// prints lines of JSON:
//
//	{"listening": NAME}                                                       the helper has started
//	{"call": "NodePrepareResources", "service": "…", "claims": [UID, …]}      and NodeUnprepareResources: a call of gRPC
//	{"call": "NotifyRegistrationStatus", "plugin_registered": true, "error": ""}
//	{"call": …, "service": …}                                                 all others, streams included
//	{"prepared": [UID, …]}, {"unprepared": [UID, …]}                          what the helper had the driver do
//	{"error": …, "msg": …}                                                    an error in the background
//
// SIGTERM and SIGINT stop the helper, which removes its sockets.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path"
	"sync"
	"syscall"

	"google.golang.org/grpc"
	resource "k8s.io/api/resource/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	dra "k8s.io/kubelet/pkg/apis/dra/v1"
	drabeta "k8s.io/kubelet/pkg/apis/dra/v1beta1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func main() {
	uid := flag.String("uid", "", "the instance of a rolling update")
	flag.Parse()
	if flag.NArg() != 3 {
		fmt.Fprintln(os.Stderr, "dra-driver: expected NAME, REGISTRY and DIRECTORY")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), flag.Arg(1), flag.Arg(2), types.UID(*uid)); err != nil {
		fmt.Fprintln(os.Stderr, "dra-driver:", err)
		os.Exit(1)
	}
}

func run(name, registry, directory string, uid types.UID) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	cluster := &cluster{name, fake.NewClientset()}
	driver := &driver{name: name, health: newHealth()}
	options := []kubeletplugin.Option{
		kubeletplugin.DriverName(name),
		kubeletplugin.NodeName("node"),
		kubeletplugin.KubeClient(cluster.client),
		kubeletplugin.RegistrarDirectoryPath(registry),
		kubeletplugin.PluginDataDirectoryPath(directory),
		kubeletplugin.GRPCInterceptor(cluster.called),
		kubeletplugin.GRPCStreamInterceptor(streamed),
	}
	if uid != "" {
		options = append(options, kubeletplugin.RollingUpdate(uid))
	}
	helper, err := kubeletplugin.Start(context.Background(), driver, options...)
	if err != nil {
		return err
	}
	say(map[string]any{"listening": name})
	go driver.health.follow(os.Stdin)
	<-signals
	helper.Stop()
	return nil
}

// A cluster has each claim that is asked for.
type cluster struct {
	driver string
	client *fake.Clientset
}

// called prints a call before it is made, and makes its claims.
func (cluster *cluster) called(
	ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler,
) (any, error) {
	line := about(info.FullMethod)
	switch request := request.(type) {
	case *registration.RegistrationStatus:
		line["plugin_registered"], line["error"] = request.PluginRegistered, request.Error
	case *dra.NodePrepareResourcesRequest:
		line["claims"] = cluster.make(ctx, asked(request.Claims))
	case *drabeta.NodePrepareResourcesRequest:
		line["claims"] = cluster.make(ctx, asked(request.Claims))
	case *dra.NodeUnprepareResourcesRequest:
		line["claims"] = uids(asked(request.Claims))
	case *drabeta.NodeUnprepareResourcesRequest:
		line["claims"] = uids(asked(request.Claims))
	}
	say(line)
	return next(ctx, request)
}

func (cluster *cluster) make(ctx context.Context, claims []claim) []string {
	for _, claim := range claims {
		if claim.GetName() == "missing" {
			continue
		}
		device := resource.DeviceRequestAllocationResult{
			Request: "request", Driver: cluster.driver, Pool: "pool", Device: "device",
		}
		made := &resource.ResourceClaim{
			ObjectMeta: meta.ObjectMeta{
				Namespace: claim.GetNamespace(), Name: claim.GetName(), UID: types.UID(claim.GetUid()),
			},
			Status: resource.ResourceClaimStatus{Allocation: &resource.AllocationResult{
				Devices: resource.DeviceAllocationResult{Results: []resource.DeviceRequestAllocationResult{device}},
			}},
		}
		// One that is there already is the same one.
		_, _ = cluster.client.ResourceV1().ResourceClaims(claim.GetNamespace()).Create(ctx, made, meta.CreateOptions{})
	}
	return uids(claims)
}

func streamed(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	say(about(info.FullMethod))
	return next(server, stream)
}

func about(method string) map[string]any {
	return map[string]any{"call": path.Base(method), "service": path.Base(path.Dir(method))}
}

// A claim is one of a request, in any version.
type claim interface {
	GetNamespace() string
	GetName() string
	GetUid() string
}

func asked[C claim](claims []C) []claim {
	found := []claim{}
	for _, one := range claims {
		found = append(found, one)
	}
	return found
}

func uids(claims []claim) []string {
	found := []string{}
	for _, claim := range claims {
		found = append(found, claim.GetUid())
	}
	return found
}

type driver struct {
	name   string
	health *health
}

func (driver *driver) PrepareResourceClaims(
	_ context.Context, claims []*resource.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results, prepared := map[types.UID]kubeletplugin.PrepareResult{}, []types.UID{}
	for _, claim := range claims {
		if claim.Name == "broken" {
			results[claim.UID] = kubeletplugin.PrepareResult{Err: errors.New("it is broken")}
			continue
		}
		device := kubeletplugin.Device{
			Requests: []string{"request"}, PoolName: "pool", DeviceName: "device",
			CDIDeviceIDs: []string{fmt.Sprintf("%s/claim=%s", driver.name, claim.UID)},
		}
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: []kubeletplugin.Device{device}}
		prepared = append(prepared, claim.UID)
	}
	say(map[string]any{"prepared": prepared})
	return results, nil
}

func (driver *driver) UnprepareResourceClaims(
	_ context.Context, claims []kubeletplugin.NamespacedObject,
) (map[types.UID]error, error) {
	results, unprepared := map[types.UID]error{}, []types.UID{}
	for _, claim := range claims {
		results[claim.UID] = nil
		unprepared = append(unprepared, claim.UID)
	}
	say(map[string]any{"unprepared": unprepared})
	return results, nil
}

func (driver *driver) HandleError(_ context.Context, err error, msg string) {
	say(map[string]any{"error": err.Error(), "msg": msg})
}

func (driver *driver) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	return driver.health.report(ctx, reports)
}

var printing sync.Mutex

func say(line map[string]any) {
	printing.Lock()
	defer printing.Unlock()
	_ = json.NewEncoder(os.Stdout).Encode(line)
}

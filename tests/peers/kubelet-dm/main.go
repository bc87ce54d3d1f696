// Command kubelet-dm runs the kubelet's own manager of device plugins (devicemanager.NewManagerImpl), with pods that are
// lines of standard input. It has no other place than /var/lib/kubelet/device-plugins, where it deletes all sockets:
// start it in a mount namespace of its own, which has another directory there.
//
//	kubelet-dm
//
// It takes lines on standard input, and prints lines of JSON:
//
//	{"ready": DIRECTORY}         plugins can call Register now
//	capacity                     {"capacity": {RESOURCE: number}, "allocatable": {RESOURCE: number}}
//	allocate POD RESOURCE N      {"allocated": POD, "ids": […], "envs": {…}, "error": ""}: a pod with one container
//	                             that wants N devices is admitted, and its container is about to start
//	end POD                      the pod has ended; no answer
//	{"log": {"msg": …, …}}       what the manager logs
//
// SIGTERM, SIGINT and the end of standard input end it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/go-logr/logr/funcr"
	"k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
)

const container = "container"

func main() {
	logger := funcr.NewJSON(func(line string) { say(map[string]any{"log": json.RawMessage(line)}) }, funcr.Options{})
	klog.SetLogger(logger)
	if err := run(klog.NewContext(context.Background(), logger), logger); err != nil {
		fmt.Fprintln(os.Stderr, "kubelet-dm:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, logger klog.Logger) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	manager, err := devicemanager.NewManagerImpl(logger, nil, topologymanager.NewFakeManager(logger))
	if err != nil {
		return err
	}
	node := &node{manager: manager, pods: map[string]*v1.Pod{}}
	ready := config.NewSourcesReady(func(sets.Set[string]) bool { return true })
	if err := manager.Start(logger, node.active, ready, containermap.NewContainerMap(), sets.New[string]()); err != nil {
		return err
	}
	say(map[string]any{"ready": api.DevicePluginPath})
	input := make(chan error, 1)
	go func() { input <- node.follow(ctx, logger) }()
	select {
	case <-signals:
		return manager.Stop(logger)
	case err := <-input:
		return err
	}
}

// A node has a manager of devices, and pods that may have some.
type node struct {
	manager *devicemanager.ManagerImpl
	lock    sync.Mutex
	pods    map[string]*v1.Pod
}

func (node *node) active() []*v1.Pod {
	node.lock.Lock()
	defer node.lock.Unlock()
	pods := []*v1.Pod{}
	for _, pod := range node.pods {
		pods = append(pods, pod)
	}
	return pods
}

// follow does what the lines of standard input ask for, until its end.
func (node *node) follow(ctx context.Context, logger klog.Logger) error {
	scanner := bufio.NewScanner(os.Stdin)
	for scanner.Scan() {
		switch words := strings.Fields(scanner.Text()); {
		case len(words) == 1 && words[0] == "capacity":
			capacity, allocatable, _ := node.manager.GetCapacity(logger)
			say(map[string]any{"capacity": numbers(capacity), "allocatable": numbers(allocatable)})
		case len(words) == 4 && words[0] == "allocate":
			number, err := resource.ParseQuantity(words[3])
			if err != nil {
				return fmt.Errorf("%q: %w", scanner.Text(), err)
			}
			node.allocate(ctx, words[1], v1.ResourceList{v1.ResourceName(words[2]): number})
		case len(words) == 2 && words[0] == "end":
			node.lock.Lock()
			delete(node.pods, words[1])
			node.lock.Unlock()
		default:
			return fmt.Errorf("no such line: %q", scanner.Text())
		}
	}
	return scanner.Err()
}

// allocate admits a pod, and asks for what its container gets, as the kubelet does before it starts one.
func (node *node) allocate(ctx context.Context, name string, wanted v1.ResourceList) {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
		Spec: v1.PodSpec{Containers: []v1.Container{{
			Name: container, Resources: v1.ResourceRequirements{Limits: wanted, Requests: wanted},
		}}},
	}
	node.lock.Lock()
	node.pods[name] = pod
	node.lock.Unlock()
	ids, envs := []string{}, map[string]string{}
	err := node.manager.Allocate(ctx, pod, &pod.Spec.Containers[0], lifecycle.AddOperation)
	if err == nil {
		var options *devicemanager.DeviceRunContainerOptions
		if options, err = node.manager.GetDeviceRunContainerOptions(ctx, pod, &pod.Spec.Containers[0]); options != nil {
			for _, env := range options.Envs {
				envs[env.Name] = env.Value
			}
		}
		for _, devices := range node.manager.GetDevices(name, container) {
			for id := range devices {
				ids = append(ids, id)
			}
		}
		slices.Sort(ids)
	}
	if err != nil {
		node.lock.Lock()
		delete(node.pods, name)
		node.lock.Unlock()
	}
	say(map[string]any{"allocated": name, "ids": ids, "envs": envs, "error": text(err)})
}

func numbers(list v1.ResourceList) map[string]int64 {
	found := map[string]int64{}
	for name, quantity := range list {
		found[string(name)] = quantity.Value()
	}
	return found
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

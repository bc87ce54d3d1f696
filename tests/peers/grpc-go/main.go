// Command grpc-go is a plugin that serves the registration service on the current grpc-go.
//
//	grpc-go [--type CSIPlugin] [--versions A,B] [--endpoint PATH] SOCKET NAME
//
// It prints a line of JSON when it listens, and for each call:
//
//	{"listening": SOCKET}
//	{"call": "GetInfo"}
//	{"call": "NotifyRegistrationStatus", "plugin_registered": true, "error": ""}
//
// SIGTERM and SIGINT end it; it removes its socket then.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

type plugin struct {
	registration.UnimplementedRegistrationServer
	info *registration.PluginInfo
}

func (plugin *plugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	say(map[string]any{"call": "GetInfo"})
	return plugin.info, nil
}

func (plugin *plugin) NotifyRegistrationStatus(
	_ context.Context, status *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	say(map[string]any{
		"call": "NotifyRegistrationStatus", "plugin_registered": status.PluginRegistered, "error": status.Error,
	})
	return &registration.RegistrationStatusResponse{}, nil
}

func main() {
	info := &registration.PluginInfo{}
	flag.StringVar(&info.Type, "type", registration.CSIPlugin, "the plugin type")
	flag.StringVar(&info.Endpoint, "endpoint", "", "where its own service is")
	versions := flag.String("versions", "1.0.0", "the versions that it supports")
	flag.Parse()
	if flag.NArg() != 2 {
		fmt.Fprintln(os.Stderr, "grpc-go: expected SOCKET and NAME")
		os.Exit(2)
	}
	info.Name, info.SupportedVersions = flag.Arg(1), strings.Split(*versions, ",")
	if err := serve(flag.Arg(0), &plugin{info: info}); err != nil {
		fmt.Fprintln(os.Stderr, "grpc-go:", err)
		os.Exit(1)
	}
}

func serve(socket string, plugin *plugin) error {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, plugin)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-signals
		server.Stop()
	}()
	say(map[string]any{"listening": socket})
	return server.Serve(listener)
}

var printing sync.Mutex

func say(line map[string]any) {
	printing.Lock()
	defer printing.Unlock()
	_ = json.NewEncoder(os.Stdout).Encode(line)
}

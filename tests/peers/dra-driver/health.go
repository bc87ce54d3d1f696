package main

import (
	"bufio"
	"context"
	"io"
	"strings"
	"sync"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

// How often a report is repeated while nothing changes; without that it is stale after 30 seconds.
const repeated = 10 * time.Second

// A health is that of all devices.
type health struct {
	lock    sync.Mutex
	devices map[string]kubeletplugin.HealthStatus
	changed chan struct{}
}

func newHealth() *health {
	devices := map[string]kubeletplugin.HealthStatus{"device": kubeletplugin.HealthStatusHealthy}
	return &health{devices: devices, changed: make(chan struct{})}
}

// follow takes the commands of an input.
func (health *health) follow(input io.Reader) {
	scanner := bufio.NewScanner(input)
	for scanner.Scan() {
		how, device, _ := strings.Cut(scanner.Text(), " ")
		status := kubeletplugin.HealthStatusHealthy
		if how == "unhealthy" {
			status = kubeletplugin.HealthStatusUnhealthy
		}
		health.lock.Lock()
		health.devices[device] = status
		close(health.changed)
		health.changed = make(chan struct{})
		health.lock.Unlock()
	}
}

// report sends the health of all devices at once, after each change, and every few seconds.
func (health *health) report(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	for {
		report, changed := health.now()
		select {
		case <-ctx.Done():
			return nil
		case reports <- report:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-time.After(repeated):
		}
	}
}

func (health *health) now() (kubeletplugin.DeviceHealthReport, <-chan struct{}) {
	health.lock.Lock()
	defer health.lock.Unlock()
	report := kubeletplugin.DeviceHealthReport{}
	for name, status := range health.devices {
		report.Devices = append(report.Devices, kubeletplugin.DeviceHealth{
			PoolName: "pool", DeviceName: name, Health: status, LastUpdated: time.Now(),
		})
	}
	return report, health.changed
}

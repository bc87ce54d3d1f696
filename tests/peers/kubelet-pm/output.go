package main

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/component-base/metrics/legacyregistry"
)

// An output collects lines, and writes those that have come while it wrote the ones before in one piece.
type output struct {
	quiet   bool
	to      io.Writer
	lock    sync.Mutex
	pending bytes.Buffer
	calls   map[string]int
	more    chan struct{}
	writing sync.Mutex
}

func newOutput(to io.Writer, quiet bool) *output {
	lines := &output{quiet: quiet, to: to, calls: map[string]int{}, more: make(chan struct{}, 1)}
	go func() {
		for range lines.more {
			lines.flush()
		}
	}()
	return lines
}

// say prints a line, unless only the most important ones are wanted.
func (lines *output) say(key string, value any) {
	if !lines.quiet {
		lines.always(key, value)
	}
}

// always prints a line in any case.
func (lines *output) always(key string, value any) {
	lines.lock.Lock()
	defer lines.lock.Unlock()
	lines.put(map[string]any{key: value})
}

func (lines *output) called(ask string, about call) {
	lines.lock.Lock()
	defer lines.lock.Unlock()
	lines.calls[ask]++
	if !lines.quiet {
		lines.put(struct {
			Call string `json:"call"`
			call
		}{ask, about})
	}
}

func (lines *output) returned(ask string, about call) {
	if lines.quiet && ask != "deregister" {
		return
	}
	lines.lock.Lock()
	defer lines.lock.Unlock()
	lines.put(struct {
		Returned string `json:"returned"`
		call
	}{ask, about})
}

// counts returns how often each call was made.
func (lines *output) counts() map[string]int {
	lines.lock.Lock()
	defer lines.lock.Unlock()
	return maps.Clone(lines.calls)
}

// put adds a line, with the time, which is no earlier than that of the line before it.
func (lines *output) put(value any) {
	stamp, err := json.Marshal(map[string]float64{"time": now()})
	if err != nil {
		panic(err)
	}
	rest, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	lines.pending.Write(stamp[:len(stamp)-1])
	lines.pending.WriteByte(',')
	lines.pending.Write(rest[1:])
	lines.pending.WriteByte('\n')
	select {
	case lines.more <- struct{}{}:
	default:
	}
}

// flush writes all lines so far.
func (lines *output) flush() {
	lines.writing.Lock()
	defer lines.writing.Unlock()
	lines.lock.Lock()
	piece := bytes.Clone(lines.pending.Bytes())
	lines.pending.Reset()
	lines.lock.Unlock()
	// A reader that has gone misses the lines; standard input and signals end the program.
	_, _ = lines.to.Write(piece)
}

func now() float64 {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &at); err != nil {
		panic(err)
	}
	return float64(at.Sec) + float64(at.Nsec)/1e9
}

// state returns the manager's desired and actual world by its own metric, which is all that it shows of them.
func state(calls map[string]int) map[string]any {
	worlds := map[string][]string{"desired_state_of_world": {}, "actual_state_of_world": {}}
	families, err := legacyregistry.DefaultGatherer.Gather()
	for _, family := range families {
		if family.GetName() != "plugin_manager_total_plugins" {
			continue
		}
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			worlds[labels["state"]] = append(worlds[labels["state"]], labels["socket_path"])
		}
	}
	for _, paths := range worlds {
		slices.Sort(paths)
	}
	found := map[string]any{
		"desired": worlds["desired_state_of_world"], "actual": worlds["actual_state_of_world"], "calls": calls,
	}
	if err != nil {
		found["error"] = err.Error()
	}
	return found
}

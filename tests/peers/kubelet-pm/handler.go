package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"
)

// A rule says how some calls of handlers behave.
type rule struct {
	Call    string  `json:"call"`
	Name    *string `json:"name"`
	Error   string  `json:"error"`
	Seconds float64 `json:"seconds"`
	Times   int     `json:"times"`
	used    int
}

func (rule *rule) fits(call, name string) bool {
	return rule.Call == call && (rule.Name == nil || *rule.Name == name) && (rule.Times == 0 || rule.used < rule.Times)
}

// A script is the rules of all handlers.
type script struct {
	lock  sync.Mutex
	rules []*rule
}

// add adds a rule, written as JSON, behind the others.
func (script *script) add(text string) error {
	added := &rule{}
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(added); err != nil {
		return err
	}
	switch added.Call {
	case "validate", "register":
	case "deregister":
		if added.Error != "" {
			return errors.New("a deregister cannot fail")
		}
	default:
		return fmt.Errorf("no such call: %q", added.Call)
	}
	script.lock.Lock()
	defer script.lock.Unlock()
	script.rules = append(script.rules, added)
	return nil
}

func (script *script) clear() {
	script.lock.Lock()
	defer script.lock.Unlock()
	script.rules = nil
}

// next returns how long a call takes, and the error with which it ends, if any.
func (script *script) next(call, name string) (time.Duration, error) {
	script.lock.Lock()
	defer script.lock.Unlock()
	for _, rule := range script.rules {
		if rule.fits(call, name) {
			rule.used++
			var err error
			if rule.Error != "" {
				err = errors.New(rule.Error)
			}
			return time.Duration(rule.Seconds * float64(time.Second)), err
		}
	}
	return 0, nil
}

// A handler is the plugin manager's handler of one type.
type handler struct {
	pluginType string
	script     *script
	lines      *output
}

// A call is what is printed of one.
type call struct {
	Type     string   `json:"type"`
	Name     string   `json:"name"`
	Endpoint string   `json:"endpoint"`
	Versions []string `json:"versions,omitempty"`
	Error    *string  `json:"error,omitempty"`
}

func (handler *handler) ValidatePlugin(ctx context.Context, name, endpoint string, versions []string) error {
	return handler.called(ctx, "validate", name, endpoint, versions)
}

func (handler *handler) RegisterPlugin(
	ctx context.Context, name, endpoint string, versions []string, _ *time.Duration,
) error {
	return handler.called(ctx, "register", name, endpoint, versions)
}

func (handler *handler) DeRegisterPlugin(ctx context.Context, name, endpoint string) {
	_ = handler.called(ctx, "deregister", name, endpoint, nil)
}

func (handler *handler) called(ctx context.Context, ask, name, endpoint string, versions []string) error {
	handler.lines.called(ask, call{Type: handler.pluginType, Name: name, Endpoint: endpoint, Versions: versions})
	takes, err := handler.script.next(ask, name)
	if takes > 0 {
		select {
		case <-time.After(takes):
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	said := ""
	if err != nil {
		said = err.Error()
	}
	handler.lines.returned(ask, call{Type: handler.pluginType, Name: name, Endpoint: endpoint, Error: &said})
	return err
}

// A handler of SensorPlugin in Go, without modules: go run examples/handler.go STATUS_SOCKET
// It accepts each plugin whose name ends with .example.com, and reports it as healthy.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

type object = map[string]any
type plugin struct {
	Instance string `json:"instance"`
	Name     string `json:"name"`
	Socket   string `json:"socket"`
}
type line struct {
	Hello  *struct{ Session string }
	Ask    string
	ID     int
	Plugin plugin
	Error  string
}

const url = "http://plugind/v1/handlers/SensorPlugin"

var client = http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "unix", os.Args[1])
}}}
var held = map[string]plugin{}

func post(what string, body object) {
	text, _ := json.Marshal(body)
	if answer, err := client.Post(url+"/"+what, "application/json", bytes.NewReader(text)); err == nil {
		answer.Body.Close()
	}
}

func serve() error {
	stream, err := client.Get(url)
	if err != nil {
		return err
	}
	defer stream.Body.Close()
	session := ""
	for lines := bufio.NewScanner(stream.Body); lines.Scan(); {
		var said line
		if len(lines.Bytes()) == 0 { // A heartbeat.
			continue
		} else if err := json.Unmarshal(lines.Bytes(), &said); err != nil {
			return err
		}
		if said.Hello != nil {
			session = said.Hello.Session
			has := []plugin{}
			for _, each := range held {
				has = append(has, each)
			}
			post("held", object{"session": session, "held": has}) // At most 256 at once.
		} else if said.Ask != "" {
			fmt.Println(said.Ask, said.Plugin.Name)
			answer := object{"id": said.ID}
			switch {
			case said.Ask == "validate" && !strings.HasSuffix(said.Plugin.Name, ".example.com"):
				answer["error"] = said.Plugin.Name + " is not ours"
			case said.Ask == "register":
				held[said.Plugin.Instance] = said.Plugin
			case said.Ask == "deregister":
				delete(held, said.Plugin.Instance)
			}
			post("answers", object{"session": session, "answers": []object{answer}})
			if said.Ask == "follow" {
				healthy := object{"instance": said.Plugin.Instance, "health": "healthy"}
				post("health", object{"session": session, "plugins": []object{healthy}})
			}
		} else if said.Error != "" {
			return fmt.Errorf("plugind: %s", said.Error)
		}
	}
	return nil
}

func main() {
	for {
		if err := serve(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		time.Sleep(time.Second) // The daemon may be upgraded.
	}
}

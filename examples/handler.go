// A handler of SensorPlugin in Go, without modules: go run examples/handler.go STATUS_SOCKET
// It accepts each plugin whose name ends with .example.com, and reports it as healthy.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

type object = map[string]any

const url = "http://plugind/v1/handlers/SensorPlugin"

var held = map[string]object{}
var client = http.Client{Transport: &http.Transport{
	DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", os.Args[1]) },
}}

func post(what, session, key string, values ...object) {
	body, _ := json.Marshal(object{"session": session, key: append([]object{}, values...)})
	if reply, err := client.Post(url+"/"+what, "application/json", strings.NewReader(string(body))); err != nil {
		log.Print(err)
	} else {
		reply.Body.Close()
	}
}

func serve() error {
	stream, err := client.Get(url)
	if err != nil {
		return err
	}
	defer stream.Body.Close()
	lines, session := json.NewDecoder(stream.Body), ""
	for {
		var line struct {
			Hello      struct{ Session string }
			ID         int
			Ask, Error string
			Plugin     struct{ Instance, Name, Socket string }
		}
		if err := lines.Decode(&line); err != nil { // It skips heartbeats, which are empty lines.
			return err
		}
		name, instance, answer := line.Plugin.Name, line.Plugin.Instance, object{"id": line.ID}
		switch {
		case line.Error != "":
			return fmt.Errorf("plugind: %s", line.Error)
		case line.Hello.Session != "":
			session = line.Hello.Session
			var has []object
			for _, plugin := range held {
				has = append(has, plugin)
			}
			post("held", session, "held", has...) // At most 256 at once.
		case line.Ask == "validate" && !strings.HasSuffix(name, ".example.com"):
			answer["error"] = name + " is not ours"
		case line.Ask == "register":
			held[instance] = object{"instance": instance, "name": name, "socket": line.Plugin.Socket}
		case line.Ask == "deregister":
			delete(held, instance)
		}
		if line.Ask != "" {
			fmt.Println(line.Ask, name)
			post("answers", session, "answers", answer)
		}
		if line.Ask == "follow" {
			post("health", session, "plugins", object{"instance": instance, "health": "healthy"})
		}
	}
}

func main() {
	for ; ; time.Sleep(time.Second) { // The daemon may be upgraded.
		log.Print(serve())
	}
}

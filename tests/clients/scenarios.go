// What every Go client's script shares; lines for the harness as in scenarios.py.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

var (
	base  = os.Getenv("TAILRACE_CLIENT_BASE") // ends in /v1
	key   = os.Getenv("TAILRACE_CLIENT_KEY")
	model = os.Getenv("TAILRACE_CLIENT_MODEL")
)

const (
	weather  = `call get_weather {"city": "Paris"}`
	longCall = "call get_weather 150" // so many tokens, about two seconds
)

// What run returns is shown; it panics if what was seen is wrong.
type scenario struct {
	name string
	run  func() any
}

func say(line map[string]any) {
	text, err := json.Marshal(line)
	must(err)
	fmt.Println(string(text))
}

func killWorker()     { say(map[string]any{"kill": "worker"}) }
func restartGateway() { ask(map[string]any{"restart": "gateway"}) }
func emptyRedis()     { ask(map[string]any{"empty": "redis"}) }

func done() int {
	text, _ := os.ReadFile(os.Getenv("TAILRACE_CLIENT_DONE"))
	return bytes.Count(text, []byte("\n"))
}

// Says it, and waits until the harness has done it.
func ask(line map[string]any) {
	before := done()
	say(line)
	for waited := 0; done() == before; waited += 50 {
		check(waited < 60_000, line, "was not done")
		time.Sleep(50 * time.Millisecond)
	}
}

func check(condition bool, seen ...any) {
	if !condition {
		words := []string{}
		for _, each := range seen {
			words = append(words, fmt.Sprintf("%+v", each))
		}
		panic(strings.Join(words, " | "))
	}
}

func same(a, b any) { check(reflect.DeepEqual(a, b), a, b) }

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// The value, if there is no error.
func ok[T any](value T, err error) T {
	must(err)
	return value
}

func runOne(each scenario) (good bool) {
	defer func() {
		if failure := recover(); failure != nil {
			text := fmt.Sprint(failure)
			fmt.Fprintln(os.Stderr, each.name, text, string(debug.Stack()))
			say(map[string]any{"scenario": each.name, "ok": false, "saw": text[:min(len(text), 2000)]})
		}
	}()
	text := fmt.Sprint(each.run())
	say(map[string]any{"scenario": each.name, "ok": true, "saw": text[:min(len(text), 300)]})
	return true
}

// Runs the scenarios (those named as arguments); exit code 1 if one failed.
func runAll(scenarios []scenario) {
	code := 0
	for _, each := range scenarios {
		if named := os.Args[1:]; len(named) > 0 && !slices.Contains(named, each.name) {
			continue
		}
		if !runOne(each) {
			code = 1
		}
	}
	os.Exit(code)
}

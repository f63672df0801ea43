package conformance

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// request is one entry of a file in testdata: a line "### name", a line with method and path,
// headers, an empty line, and the body. Some headers are for the test only: As (a user), Events
// (the number of watch events to read), Until (the status to wait for), and Follow (list all
// pages).
type request struct {
	name, method, path, as, body string
	header                       http.Header
	events, until                int
	follow                       bool
	only                         func(any) any // selects the compared part of the body
}

func files(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("testdata/*.http")
	if err != nil || len(all) == 0 {
		t.Fatalf("no requests in testdata (%v)", err)
	}
	return all
}

func parse(t *testing.T, file string) []request {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []request
	for _, part := range strings.Split("\n"+string(text), "\n### ")[1:] {
		head, body, _ := strings.Cut(part, "\n\n")
		lines := strings.Split(strings.TrimSpace(head), "\n")
		if len(lines) < 2 {
			t.Fatalf("%s: %q needs a line with method and path", file, lines[0])
		}
		r := request{name: lines[0], as: "user", header: http.Header{}, body: strings.TrimSpace(body)}
		r.method, r.path, _ = strings.Cut(lines[1], " ")
		if r.body != "" {
			r.header.Set("Content-Type", "application/json")
		}
		for _, line := range lines[2:] {
			k, v, _ := strings.Cut(line, ": ")
			switch k {
			case "As":
				r.as = v
			case "Follow":
				r.follow = true
			case "Events":
				if r.events, err = strconv.Atoi(v); err != nil {
					t.Fatal(err)
				}
			case "Until":
				if r.until, err = strconv.Atoi(v); err != nil {
					t.Fatal(err)
				}
			default:
				r.header.Set(k, v)
			}
		}
		out = append(out, r)
	}
	return out
}

// normal returns v without values that always differ between servers; key is the field of v.
func (c cleaner) normal(key string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, x := range v {
			if k == "kcp.io/cluster" {
				continue
			}
			if x = c.normal(k, x); k == "annotations" {
				if m, ok := x.(map[string]any); ok && len(m) == 0 {
					continue // it has only kcp.io/cluster
				}
			}
			out[c.plain("", k)] = x // in managed fields, a key may be a uid
		}
		if out["kind"] == "Status" {
			unordered(out)
		}
		if out["openapi"] != nil { // the rest has the address of the server and its credentials
			return map[string]any{"paths": out["paths"], "schemas": field(out, "components", "schemas")}
		}
		return out
	case []any:
		if key == "resources" || key == "subresources" { // of discovery, whose order varies
			v = slices.SortedFunc(slices.Values(v), func(a, b any) int { return strings.Compare(text(a), text(b)) })
		}
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = c.normal(key, x)
		}
		if key == "managedFields" { // sorted by times, which are removed
			slices.SortFunc(out, func(a, b any) int { return strings.Compare(text(a), text(b)) })
		}
		return out
	case string:
		return c.plain(key, v)
	}
	return v
}

// unordered sorts the errors of a message with several errors. Servers find them in the random
// order of a map. The same applies to managed fields in a message.
func unordered(status map[string]any) {
	causes, _ := field(status, "details", "causes").([]any)
	message, _ := status["message"].(string)
	if len(causes) < 2 && !strings.Contains(message, "strict decoding error") && !strings.Contains(message, "managedFields") {
		return
	}
	status["message"] = words(message)
	for _, c := range causes {
		if quoted, _ := field(c, "message").(string); strings.Contains(quoted, "managedFields") {
			c.(map[string]any)["message"] = words(quoted)
		}
	}
	slices.SortFunc(causes, func(a, b any) int { return strings.Compare(text(a), text(b)) })
}

func words(s string) string {
	all := strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(" ,[]{}", r) })
	slices.Sort(all)
	return strings.Join(all, " ")
}

// cleaner removes values from strings that always differ between servers.
type cleaner []replacement

// replacement is tried only in strings with the mark, because patterns are slow.
type replacement struct {
	mark    string
	pattern *regexp.Regexp
	by      string
}

func newCleaner() cleaner {
	return cleaner{
		// Two fields of an object that a message quotes.
		{"kcp.io/cluster", regexp.MustCompile(`\\?"annotations\\?":\{\\?"kcp.io/cluster\\?":\\?"\w+\\?"\},`), ""},
		{"kcp.io/cluster", regexp.MustCompile(`\\?"kcp.io/cluster\\?":\\?"\w+\\?",?`), ""},
		{"resourceVersion", regexp.MustCompile(`(resourceVersion\\?":\\?")\d+`), "$1<resourceVersion>"},
		{"-", regexp.MustCompile(`\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`), "<uid>"},
		{"Z", regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`), "<time>"},
		{"Key: ", regexp.MustCompile(`Key: [^,]+,`), "Key: <key>,"}, // of etcd, in some messages
		{"gen-", regexp.MustCompile(`\bgen-[a-z0-9]{5}\b`), "gen-<suffix>"},
	}
}

// plain returns a string without values that always differ between servers; key is its field.
func (c cleaner) plain(key, s string) string {
	switch key {
	case "uid", "resourceVersion", "continue", "token":
		if s != "" {
			return "<" + key + ">"
		}
	case "cells":
		const digits, units = "0123456789", "dhms"
		if strings.Trim(s, digits+units) == "" && strings.TrimLeft(s, digits) != s && strings.TrimRight(s, units) != s {
			return "<age>"
		}
	}
	for _, r := range c {
		if strings.Contains(s, r.mark) {
			s = r.pattern.ReplaceAllString(s, r.by)
		}
	}
	return s
}

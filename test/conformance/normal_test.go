package conformance

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// request is one entry of a file in testdata: a line "### name", a line with
// method and path, headers, an empty line, and the body. The headers As (a user)
// and Events (how many events of a watch to read) are for the test alone.
type request struct {
	name, method, path, as, body string
	header                       http.Header
	events                       int
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
			case "Events":
				if r.events, err = strconv.Atoi(v); err != nil {
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

// normal returns v without what no two servers have in common; key is where v was.
func normal(key string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, x := range v {
			if k == "kcp.io/cluster" {
				continue
			}
			if x = normal(k, x); k == "annotations" {
				if m, ok := x.(map[string]any); ok && len(m) == 0 {
					continue // kcp.io/cluster was the only one
				}
			}
			out[k] = x
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, x := range v {
			out[i] = normal("", x)
		}
		return out
	case string:
		return text(key, v)
	}
	return v
}

func text(key, s string) string {
	switch key {
	case "uid", "resourceVersion", "continue", "token":
		if s != "" {
			return "<" + key + ">"
		}
	}
	s = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`).ReplaceAllString(s, "<uid>")
	s = regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`).ReplaceAllString(s, "<time>")
	s = regexp.MustCompile(`^\d+s$`).ReplaceAllString(s, "<age>")
	s = regexp.MustCompile(`Key: [^,]+,`).ReplaceAllString(s, "Key: <key>,") // of etcd, in some messages
	return regexp.MustCompile(`\bgen-[a-z0-9]{5}\b`).ReplaceAllString(s, "gen-<suffix>")
}

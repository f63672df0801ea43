package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

func TestMarkdown(t *testing.T) {
	r := &report{Machine: []string{"machine: one"}, Subjects: []string{"a", "b"}}
	r.addTime("b", "start", "wall", 2*time.Second) // the order of subjects is that of the columns
	r.addTime("a", "start", "wall", 1500*time.Millisecond)
	r.add("a", "start", "memory", bytesUnit, 3<<20)
	r.add("b", "load", "rate", perSecond, 1234.5)
	r.add("a", "load", "rate", perSecond, 617.25)
	r.add("a", "load", "goroutines", plainCount, -0.5)
	r.add("b", "load", "goroutines", plainCount, 0)
	var got strings.Builder
	if err := r.markdown(&got); err != nil {
		t.Fatal(err)
	}
	want := `- machine: one

| case | figure | a | b | a / b |
|---|---|---:|---:|---:|
| start | wall | 1.50 s | 2.00 s | 0.75 |
|  | memory | 3.00 MiB | – | – |
| load | rate | 617/s | 1234/s | 0.50 |
|  | goroutines | -0.50 | 0 | – |
`
	if d := cmp.Diff(want, got.String()); d != "" {
		t.Errorf("table (-want +got):\n%s", d)
	}
}

func TestFormat(t *testing.T) {
	for _, c := range []struct {
		v    float64
		u    unit
		want string
	}{
		{0.000351, seconds, "351 µs"},
		{0.01234, seconds, "12.3 ms"},
		{61, seconds, "61.0 s"},
		{0, seconds, "0.00 µs"},
		{-2048, bytesUnit, "-2.00 KiB"},
		{150 << 20, bytesUnit, "150 MiB"},
		{24, plainCount, "24"},
		{-0.001, plainCount, "0"},
	} {
		if got := format(map[string]float64{"a": c.v}, "a", c.u); got != c.want {
			t.Errorf("format(%v, %q) = %q, want %q", c.v, c.u, got, c.want)
		}
	}
}

func TestParseRefusesWhatCannotBeMeasured(t *testing.T) {
	for _, args := range [][]string{
		{"workspaces"},
		{"-clients=0"},
		{"-rounds=10", "-lists=9"},
		{"-nonsense"},
	} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("parse(%q) gave no error", args)
		}
	}
	if _, err := parse([]string{"-short"}, io.Discard); err != nil {
		t.Error(err)
	}
}

func TestLoadRunsEachOnceAndStopsAtAFailure(t *testing.T) {
	s := &server{}
	var done [100]bool // each index is written once, so by one goroutine
	x, err := s.load(t.Context(), make([]*client, 4), len(done), func(_ context.Context, _ *client, i int) error {
		if done[i] {
			t.Errorf("operation %d ran twice", i)
		}
		done[i] = true
		return nil
	})
	if err != nil || len(x.latencies) != len(done) {
		t.Errorf("%d latencies and %v, want %d", len(x.latencies), err, len(done))
	}
	for i, d := range done {
		if !d {
			t.Errorf("operation %d did not run", i)
		}
	}
	broken := errors.New("broken")
	_, err = s.load(t.Context(), make([]*client, 4), 1<<30, func(_ context.Context, _ *client, i int) error {
		if i == 10 {
			return broken
		}
		return nil
	})
	if !errors.Is(err, broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
}

func TestAccounts(t *testing.T) {
	events := watch.NewFake()
	a := &accounts{events: events, seen: map[string]bool{}, waiting: map[string][]chan error{}}
	a.ended.Go(a.run)
	before := a.wait("one")
	events.Add(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "one", Name: "default"}})
	if err := <-before; err != nil {
		t.Error(err)
	}
	if err := <-a.wait("one"); err != nil {
		t.Error("an account seen before:", err)
	}
	never := a.wait("two")
	a.close()
	if err := <-never; err == nil {
		t.Error("the watch has ended, and a waiter was told that its account exists")
	}
	if err := <-a.wait("three"); err == nil {
		t.Error("the watch has ended, and a new waiter was told that its account exists")
	}
}

func TestEncodings(t *testing.T) {
	for name, begin := range map[string]string{"json": "{", "protobuf": "k8s\x00"} {
		e, err := newEncoding(name)
		if err != nil {
			t.Fatal(err)
		}
		b, err := e.configMap("a", "create", 100)
		if err != nil || !strings.HasPrefix(string(b), begin) || len(b) < 100 {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if _, err := newEncoding("yaml"); err == nil {
		t.Error("an encoding that does not exist")
	}
}

func TestNothingIsLeftBehindOnFailure(t *testing.T) {
	dir := t.TempDir()
	err := run(t.Context(), []string{"-subjects=kcp", "-kcp=/bin/does-not-exist", "-dir=" + dir}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "go build -o bin/ ./cmd/kcp") {
		t.Errorf("error %v, want one that says how to build the binary", err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

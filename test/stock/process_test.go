package stock

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestProcFiles(t *testing.T) {
	// The name of a program may contain spaces and parentheses.
	stat := "42 (a) b (c) S 1 42 42 0 -1 4194560 1 2 3 4 150 25 9 9 20 0 8 0 123 456\n"
	if got, err := parseStat([]byte(stat)); err != nil || got != 1750*time.Millisecond {
		t.Errorf("parseStat = %v, %v, want 1.75s", got, err)
	}
	if _, err := parseStat([]byte("42 (a) S 1")); err == nil {
		t.Error("parseStat took a line that is too short")
	}
	status := "Name:\ta\nVmRSS:\t  2048 kB\nRssAnon:\t    1024 kB\nRssFile:\t  1024 kB\n"
	if got, err := parseStatus([]byte(status), "RssAnon"); err != nil || got != 1<<20 {
		t.Errorf("parseStatus = %v, %v, want 1 MiB", got, err)
	}
	if _, err := parseStatus([]byte("Name:\tkthreadd\n"), "RssAnon"); err == nil {
		t.Error("parseStatus found memory where there is none")
	}
}

func TestProcessIsStoppedAndWaitedFor(t *testing.T) {
	p, err := Launch(t.TempDir(), "sleeper", "/bin/sleep", "600")
	if err != nil {
		t.Fatal(err)
	}
	if m, err := p.Memory(); err != nil || m <= 0 {
		t.Errorf("memory = %v, %v", m, err)
	}
	if _, err := p.CPU(); err != nil {
		t.Error(err)
	}
	p.Stop()
	if err := syscall.Kill(p.PID(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the process is still there: %v", err)
	}
	p.Stop() // again does no harm
}

func TestPollTellsWhyAServerEnded(t *testing.T) {
	p, err := Launch(t.TempDir(), "server", "/bin/sh", "-c", "echo no such flag; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	err = Poll(t.Context(), time.Millisecond, p, func() (bool, error) { return false, nil })
	if err == nil || !strings.Contains(err.Error(), "no such flag") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("error %v, want the exit status and the log", err)
	}
}

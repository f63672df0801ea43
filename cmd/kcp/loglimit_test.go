package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
)

// Errors that users cause with each request do not fill the log, and do not hide other lines.
func TestLogLimiter(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	now, verbose := time.Unix(0, 0), false
	l := newLogLimiter(false)
	l.to, l.now, l.verbose = &out, func() time.Time { return now }, func() bool { return verbose }
	write := func(source string) {
		entry := fmt.Sprintf("E1122 07:10:51.133577   21348 %s] \"Unhandled Error\" err=\"a[0] b\"\n", source)
		if n, err := l.Write([]byte(entry)); n < len(entry) || err != nil {
			t.Fatal(n, err)
		}
	}
	written := func(when string, want int) {
		t.Helper()
		if got := strings.Count(out.String(), "\n"); got != want {
			t.Errorf("%s: %d entries, want %d\n%s", when, got, want, &out)
		}
		out.Reset()
	}
	for range 1000 {
		write("status.go:71")
	}
	written("at once", logBurst)
	write("other.go:7")
	written("from another line", 1)
	late := `status.go:71] "Unhandled Error" err="FinishRequest: post-timeout activity - time-elapsed: 1s, panicked: true, err: <nil>"` + "\n"
	if _, err := l.Write([]byte("E1122 07:10:51.133577   21348 " + late)); err != nil {
		t.Fatal(err)
	}
	written("a panic from the first line", 1)
	now = now.Add(logInterval)
	for range 100 {
		write("status.go:71")
	}
	if !strings.Contains(out.String(), `err="a[0] b" (and 990 more of this line of the source were left out)`) {
		t.Errorf("what was left out is not counted: %s", &out)
	}
	written("later", 1)
	for _, entry := range []string{"I1122 07:10:51.133577   21348 a.go:1] hello\n", "F1122 07:10:51.133577   21348 a.go:1] hello\n", "goroutine 1 [running]:\n", ""} {
		if n, err := l.Write([]byte(entry)); n != len(entry) || err != nil {
			t.Fatal(n, err)
		}
	}
	invalid := "E1122 07:10:51.133577   21348 fieldmanager.go:155] \"[SHOULD NOT HAPPEN] failed to update managedFields\" err=\"it does not fit\"\n"
	if n, err := l.Write([]byte(invalid)); n != len(invalid) || err != nil {
		t.Fatal(n, err)
	}
	written("an invalid custom resource", 0)
	written("information, and what klog itself writes", 0)
	verbose = true
	for range 100 {
		write("status.go:71")
	}
	written("when more is asked for", 100)
}

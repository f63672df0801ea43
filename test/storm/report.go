package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"time"
)

// The targets.
const (
	barP50    = 3 * time.Millisecond
	barP99    = 30 * time.Millisecond
	barMemory = 1 << 30
)

// A result is the result of a storm.
type result struct {
	storm
	alone, during       quiet
	before, most, after state
	early               bool          // it ended early, for memory
	took                time.Duration // until the server was back; -1 if it was not
	count               *tally
}

// failures returns the number of 5xx answers to the storm.
func (r *result) failures() (n int) {
	for code, each := range r.count.Codes {
		if code >= 500 {
			n += each
		}
	}
	return n
}

func (r *result) limited() int { return r.count.Codes[http.StatusTooManyRequests] }

// line returns the result in one line.
func (r *result) line() string {
	text := fmt.Sprintf("%s: get p50 %s p99 %s, create p50 %s p99 %s (alone %s, %s), memory +%s, sent %d, answers %v",
		r.name, ms(r.during.get.p(50)), ms(r.during.get.p(99)), ms(r.during.create.p(50)), ms(r.during.create.p(99)),
		ms(r.alone.get.p(50)), ms(r.alone.create.p(50)), mib(r.most.memory-r.before.memory), r.count.Sent, r.count.Codes)
	for _, failure := range slices.Sorted(maps.Keys(r.count.Failures)) {
		text += "\n  5xx: " + failure
	}
	return text
}

func ms(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}

func mib(bytes float64) string { return fmt.Sprintf("%.0f MiB", bytes/(1<<20)) }

// times writes the latencies of one kind of request, those above a target in bold.
func times(alone, during *latencies, slow bool) string {
	p50, p99 := barP50, barP99
	if slow { // both latencies include the delay of etcd
		p50, p99 = p50+alone.p(50), p99+alone.p(99)
	}
	text := fmt.Sprintf("%s / %s / %s (%d)", bold(ms(during.p(50)), during.p(50) > p50), bold(ms(during.p(99)), during.p(99) > p99), ms(during.p(100)), len(during.times))
	if len(during.failed) > 0 {
		text += fmt.Sprintf(" **failed %v**", during.failed)
	}
	return text
}

func bold(text string, over bool) string {
	if over {
		return "**" + text + "**"
	}
	return text
}

// table writes the results beside the targets.
func table(out io.Writer, o *options, results []result) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d processors, %s of each storm; storms run in child processes at nice %d; nothing else should run on the machine.\n", runtime.NumCPU(), o.lasts, o.nice)
	fmt.Fprintf(&b, "Targets: get and create of the quiet tenant p50 ≤ %s and p99 ≤ %s, memory ≤ +%s, no 5xx, 429 with Retry-After beyond limits. Figures that miss a target are bold.\n\n", barP50, barP99, mib(barMemory))
	b.WriteString("| storm | alone: get, create p50 | get p50 / p99 / max (n) | create p50 / p99 / max (n) | memory | goroutines | after | 5xx | 429 | requests |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, r := range results {
		after := fmt.Sprintf("back in %s", r.took.Round(time.Second))
		if r.took < 0 {
			after = fmt.Sprintf("**not back: +%s, %.0f goroutines**", mib(r.after.memory-r.before.memory), r.after.goroutines)
		}
		memory := bold("+"+mib(r.most.memory-r.before.memory), r.most.memory-r.before.memory > barMemory)
		if r.early {
			memory += " **ended early**"
		}
		limited := fmt.Sprint(r.limited())
		if r.count.Hasty > 0 {
			limited += fmt.Sprintf(" **%d without Retry-After**", r.count.Hasty)
		}
		fmt.Fprintf(&b, "| %s: %s | %s, %s | %s | %s | %s | %.0f → %.0f | %s | %s | %s | %s |\n", r.name, r.what,
			ms(r.alone.get.p(50)), ms(r.alone.create.p(50)), times(&r.alone.get, &r.during.get, r.slowEtcd), times(&r.alone.create, &r.during.create, r.slowEtcd),
			memory, r.before.goroutines, r.most.goroutines, after, bold(fmt.Sprint(r.failures()), r.failures() > 0), limited, r.answers())
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// answers writes the number of requests of a storm, and their answers.
func (r *result) answers() string {
	text := fmt.Sprintf("%d", r.count.Sent)
	for _, code := range slices.Sorted(maps.Keys(r.count.Codes)) {
		text += fmt.Sprintf(", %d×%d", r.count.Codes[code], code)
	}
	if r.count.Broken > 0 {
		text += fmt.Sprintf(", %d without an answer", r.count.Broken)
	}
	return text
}

// judge returns an error for results that are wrong even on a busy machine.
func judge(results []result) (err error) {
	limited := 0
	for _, r := range results {
		limited += r.limited()
		switch {
		case r.failures() > 0:
			err = errors.Join(err, fmt.Errorf("%s: %d answers are 5xx: %v", r.name, r.failures(), r.count.Failures))
		case r.served && r.count.Codes[http.StatusOK]+r.count.Codes[http.StatusCreated] == 0:
			err = errors.Join(err, fmt.Errorf("%s: no request was served: %v", r.name, r.count.Codes))
		case r.count.Hasty > 0:
			err = errors.Join(err, fmt.Errorf("%s: %d answers are 429 without Retry-After", r.name, r.count.Hasty))
		case r.during.get.errors()+r.during.create.errors() > 0:
			err = errors.Join(err, fmt.Errorf("%s: requests of the quiet tenant failed: get %v, create %v", r.name, r.during.get.failed, r.during.create.failed))
		case r.early || r.most.memory-r.before.memory > barMemory:
			err = errors.Join(err, fmt.Errorf("%s: memory grew by %s", r.name, mib(r.most.memory-r.before.memory)))
		case r.took < 0:
			err = errors.Join(err, fmt.Errorf("%s: memory grew by %s and goroutines from %.0f to %.0f, for good", r.name, mib(r.after.memory-r.before.memory), r.before.goroutines, r.after.goroutines))
		}
	}
	if limited == 0 && len(results) > 1 {
		err = errors.Join(err, errors.New("no storm met a limit (429)"))
	}
	return err
}

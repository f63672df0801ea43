package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
)

// Storms send valid requests. Otherwise a server could refuse them as malformed.
func TestStormsSendWhatIsValid(t *testing.T) {
	for _, terms := range []int{selectorTerms, servedTerms} {
		if selector, err := labels.Parse(longSelector(terms)); err != nil {
			t.Error(err)
		} else if requirements, _ := selector.Requirements(); len(requirements) != terms {
			t.Errorf("a selector of %d terms, want %d", len(requirements), terms)
		}
	}
	for name, body := range map[string][]byte{"keys": manyKeys(260_000), "members": manyKeys(servedKeys), "large": largeConfigMap(largeBytes), "huge": hugeThing()} {
		if !json.Valid(body) || len(body) > 3<<20 {
			t.Errorf("%s: %d bytes, which are no JSON or too many", name, len(body))
		}
	}
	if n := bytes.Count(manyKeys(260_000), []byte(`:""`)); n != 260_000 {
		t.Errorf("%d keys", n)
	}
}

func TestStormsAreMadeOfAttacks(t *testing.T) {
	for _, s := range storms() {
		names := s.of
		if names == nil {
			names = []string{s.name}
		}
		for _, name := range names {
			if attacks()[name] == nil {
				t.Errorf("%s: there is no attack %q", s.name, name)
			}
		}
	}
}

func TestTableShowsWhatMissesABar(t *testing.T) {
	r := result{storm: storm{name: "hail"}, count: newTally(), took: -1}
	r.count.Codes = map[int]int{503: 2, 429: 3}
	r.count.Hasty = 1
	r.during.get.add(5*time.Millisecond, nil)
	r.most.memory = 2 << 30
	var got strings.Builder
	if err := table(&got, &options{}, []result{r}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"**5.0 ms** / 5.0 ms", "**+2048 MiB**", "**not back", "**2**", "3 **1 without Retry-After**"} {
		if !strings.Contains(got.String(), want) {
			t.Errorf("no %q in\n%s", want, got.String())
		}
	}
	if err := judge([]result{r}); err == nil {
		t.Error("5xx are no fault")
	}
	if err := judge([]result{{storm: r.storm, count: &tally{Codes: map[int]int{429: 1}}}}); err != nil {
		t.Error(err)
	}
}

func TestTallyCountsLimitsWithoutRetryAfter(t *testing.T) {
	c := newTally()
	c.answered(&http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"1"}}})
	c.answered(&http.Response{StatusCode: 429})
	sum := newTally()
	sum.add(c)
	if sum.Codes[429] != 2 || sum.Hasty != 1 {
		t.Errorf("%+v", sum)
	}
}

func TestAttackNeedsAName(t *testing.T) {
	for _, in := range []string{"", "{}\n", `{"Attack":"kindness"}` + "\n"} {
		if err := attack(context.Background(), strings.NewReader(in), io.Discard); err == nil {
			t.Errorf("no error for %q", in)
		}
	}
}

func TestParse(t *testing.T) {
	for _, args := range [][]string{{"reset"}, {"-workspaces=2"}, {"-nonsense"}} {
		if _, err := parse(args, io.Discard); err == nil {
			t.Errorf("parse(%q) gave no error", args)
		}
	}
}

package answers

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/unforked/kcp"
)

// alone is the maximum of a consumer in tests.
const alone = 384 << 20

// weights returns weights with limits like those of pods.
func weights() *Weights {
	return New(Limits{All: 1 << 30, Tenant: 2 * alone, Alone: alone, Bytes: 64 << 20, Answer: 2 * alone, Page: 32 << 20, One: 256 << 10, Change: 8 << 20, Light: 128 << 10, Density: Typed()})
}

// No owner of physical clusters, and no consumer, takes all that answers may weigh.
func TestTenantsShareWeight(t *testing.T) {
	l := weights()
	got := func(of Owners) (n int64) {
		b := l.Results(of).Budget()
		for n = 0; b.take(1 << 20); n++ {
		}
		return n
	}
	if n := got(Owners{"a", "x"}); n != l.Tenant>>21 {
		t.Errorf("a consumer gets %d MiB of the answers of one owner", n)
	}
	if n := got(Owners{"a", "y"}); n == 0 {
		t.Error("another consumer gets nothing")
	}
	for _, compute := range []kcp.ClusterName{"b", "c", "d", "e"} {
		for _, consumer := range []kcp.ClusterName{"x", "y", "z"} {
			got(Owners{compute, consumer})
		}
	}
	if n := got(Owners{"new", "new"}); n == 0 {
		t.Errorf("four owners take %d MiB, and leave nothing", l.all>>20)
	}
}

// Requests wait for room, but not for each other, nor for what they have themselves.
func TestRequestsWaitForRoom(t *testing.T) {
	for name, c := range map[string]struct {
		first, second, asks int64 // what two requests have, and what each asks for
		now                 bool  // whether the second is told at once
	}{
		"for another":               {alone, 0, 1 << 20, false},
		"for itself":                {0, alone, 1 << 20, true},
		"for each other":            {alone / 2, alone / 2, 1 << 20, true},
		"for what is never allowed": {0, 0, alone + 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := weights()
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				a, b := l.Results(Owners{"o", "c"}), l.Results(Owners{"o", "c"})
				one, two := a.Budget(), b.Budget()
				if one.Keep(c.first) != nil || two.Keep(c.second) != nil {
					t.Fatal("no room")
				}
				ready := make(chan error, 1)
				if name == "for each other" {
					go func() { ready <- one.Reserve(ctx, c.asks) }()
					synctest.Wait()
				} else {
					time.AfterFunc(time.Second, one.End)
				}
				err := two.Reserve(ctx, c.asks)
				if (err != nil) != c.now || c.now != (time.Since(start) == 0) {
					t.Errorf("after %s: %v", time.Since(start), err)
				}
				two.End()
				if name == "for each other" {
					if err := <-ready; err != nil {
						t.Errorf("both fail: %v", err)
					}
				}
				one.End()
				a.End()
				b.End()
				if l.all != 0 || len(l.of) > 0 || len(l.patient) > 0 || a.kept != 0 || b.kept != 0 {
					t.Errorf("left: %+v", l)
				}
				full := l.Results(Owners{"o", "c"}).Budget()
				if err := full.Reserve(ctx, alone); err != nil {
					t.Error(err)
				}
				if err := two.Reserve(ctx, c.asks); err == nil {
					t.Error("there is room")
				}
			})
		})
	}
}

// A decoded answer takes at most as much memory as was reserved for its bytes, be it decoded to structs or to maps.
func TestWeightIsMemory(t *testing.T) {
	pod, err := os.ReadFile("testdata/pod.json")
	if err != nil {
		t.Fatal(err)
	}
	members := &strings.Builder{}
	for i := range 5000 {
		fmt.Fprintf(members, `"%x":"",`, i)
	}
	page := `{"items":[` + strings.Repeat(string(pod)+",", 249) + string(pod) + `]}`
	for name, text := range map[string]string{
		"typical":     page,
		"pods":        `{"items":[` + strings.Repeat(`{},`, 1000) + `{}]}`,
		"containers":  `{"items":[{"spec":{"containers":[` + strings.Repeat(`null,`, 1000) + `null]}}]}`,
		"statuses":    `{"items":[{"status":{"containerStatuses":[` + strings.Repeat(`{},`, 1000) + `{}]}}]}`,
		"labels":      `{"items":[{"metadata":{"labels":{` + members.String() + `"a":"b"}}}]}`,
		"small maps":  `{"items":[` + strings.Repeat(`{"metadata":{"labels":{"":""},"annotations":{"":""}}},`, 1000) + `{}]}`,
		"empty texts": `{"items":[{"spec":{"containers":[{"args":[` + strings.Repeat(`"",`, 1000) + `""]}]}}]}`,
	} {
		list, content := &corev1.PodList{}, map[string]any{}
		for as, into := range map[Density]func() (int64, error){
			Typed(): func() (int64, error) { err := json.Unmarshal([]byte(text), list); return MemoryOf(list), err },
			Untyped(): func() (int64, error) {
				err := json.Unmarshal([]byte(text), &content)
				return MemoryOf(&content) + 2*int64(len(text)), err
			},
		} {
			s := scale{as: as}
			weight, err := s.weigh([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			n, err := into()
			if err != nil {
				t.Fatal(err)
			}
			if n > weight {
				t.Errorf("%s, %+v: %d bytes of JSON weigh %d, and take %d", name, as, len(text), weight, n)
			}
			if room := weights().Page; as == Typed() && text == page && weight > room {
				t.Errorf("a page of usual pods weighs %d KiB, and %d are reserved", weight>>10, room>>10)
			}
		}
	}
}

// The scale takes any text, and no text weighs less than its bytes.
func FuzzScale(f *testing.F) {
	f.Add(`{"a":[{},{"b":"[,\\\""},null]}`)
	f.Add(`{"a":{"b":"","c":":"}}`)
	f.Fuzz(func(t *testing.T, text string) {
		whole, parts := scale{as: Typed()}, scale{as: Typed()}
		weight, err := whole.weigh([]byte(text))
		sum := int64(0)
		for i := range len(text) {
			n, bad := parts.weigh([]byte(text[i : i+1]))
			if sum += n; bad != nil {
				return
			}
		}
		if err == nil && (weight != sum || weight < int64(len(text))) {
			t.Errorf("%q weighs %d, and its bytes %d", text, weight, sum)
		}
		var value any
		if json.Unmarshal([]byte(text), &value) == nil && err == nil && weight < least(value) {
			t.Errorf("%q weighs %d", text, weight)
		}
	})
}

// least returns the least weight of a value.
func least(value any) (n int64) {
	switch v := value.(type) {
	case []any:
		for _, one := range v {
			n += Typed().Element + least(one)
		}
	case map[string]any:
		for _, one := range v {
			n += Typed().Member + least(one)
		}
	}
	return n
}

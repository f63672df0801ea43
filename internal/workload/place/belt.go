package place

import (
	"slices"
	"time"
)

// Hold reports whether so many targets do not answer at once that the server, or its network, is
// the likely cause. Then no target is given up. Targets that an operator or outside probes say are
// gone do not count.
func Hold(targets []Target) bool {
	all, lost := count(targets)
	return lost > 0 && (lost == all || ill(all, lost))
}

// count counts targets, and those that do not answer. Targets that are known to be gone do not count, and neither do
// those that have never answered.
func count(targets []Target) (all, lost int) {
	for _, t := range targets {
		silent := !t.Unreachable.IsZero()
		if !t.Ready || silent && (t.Fenced || t.Confirmed) {
			continue
		}
		if all++; silent {
			lost++
		}
	}
	return all, lost
}

// ill reports whether most of at least three targets are lost.
func ill(all, lost int) bool { return all >= 3 && lost*100 >= all*55 }

// A Rate limits how many workloads begin to leave the targets of a failure domain that do not answer.
type Rate struct {
	PerSecond, Burst float64
}

// Normal is the rate of a failure domain. A tenth of it applies while the domain is partly ill.
func Normal() Rate { return Rate{10, 50} }

// RateOf returns the rate of a failure domain whose normal one is r. A domain that is lost as a whole,
// while others are not, has the normal one.
func RateOf(targets []Target, domain string, r Rate) Rate {
	all, lost := count(slices.DeleteFunc(slices.Clone(targets), func(t Target) bool { return t.Domain != domain }))
	if lost < all && ill(all, lost) {
		return Rate{r.PerSecond / 10, max(1, r.Burst/10)}
	}
	return r
}

// A Bucket has the permits of a failure domain. The zero value is full.
type Bucket struct {
	used float64 // at the time at
	at   time.Time
}

// Take takes a permit. It reports false if there is none.
func (b Bucket) Take(r Rate, now time.Time) (Bucket, bool) {
	used := max(0, b.used-max(0, now.Sub(b.at).Seconds())*r.PerSecond)
	if used+1 > r.Burst {
		return Bucket{used, now}, false
	}
	return Bucket{used + 1, now}, true
}

// Turn returns when one of the workloads that wait for a permit tries again. Each has a time of its
// own, so that about as many try as there are permits.
func Turn(r Rate, id string, waiting int) time.Duration {
	part := float64(rank(id, "")>>11) / (1 << 53) // in [0, 1)
	return time.Duration((1 + part*float64(waiting)) / r.PerSecond * float64(time.Second))
}

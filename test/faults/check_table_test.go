package faults

import (
	"testing"
	"time"
)

func TestCheckWrites(t *testing.T) {
	put := func(rev int64, write int, before int64) event {
		return event{key: "k", rev: rev, mark: mark{"a", write}, beforeRev: before}
	}
	for name, c := range map[string]struct {
		ops    []op
		events []event
		wrong  int
	}{
		"acknowledged":       {[]op{{mark: mark{"a", 1}, verb: "create", code: 201, rev: 5}}, []event{put(5, 1, 0)}, 0},
		"lost":               {[]op{{mark: mark{"a", 1}, verb: "create", code: 201, rev: 5}}, nil, 1},
		"other revision":     {[]op{{mark: mark{"a", 1}, verb: "create", code: 201, rev: 5}}, []event{put(6, 1, 0)}, 1},
		"refused":            {[]op{{mark: mark{"a", 1}, verb: "create", code: 403}}, nil, 0},
		"refused but made":   {[]op{{mark: mark{"a", 1}, verb: "create", code: 409}}, []event{put(5, 1, 0)}, 1},
		"unknown, made":      {[]op{{mark: mark{"a", 1}, verb: "create"}}, []event{put(5, 1, 0)}, 0},
		"unknown, not made":  {[]op{{mark: mark{"a", 1}, verb: "create", code: 503}}, nil, 0},
		"twice":              {nil, []event{put(5, 1, 0), put(6, 1, 5)}, 1},
		"conditional":        {[]op{{mark: mark{"a", 2}, verb: "update", code: 200, rev: 6, base: 5}}, []event{put(6, 2, 5)}, 0},
		"update overwritten": {[]op{{mark: mark{"a", 3}, verb: "update", code: 200, rev: 7, base: 5}}, []event{put(7, 3, 6)}, 1},
	} {
		if wrong := checkWrites(c.ops, c.events); len(wrong) != c.wrong {
			t.Errorf("%s: %q, want %d", name, wrong, c.wrong)
		}
	}
}

func TestCheckObjects(t *testing.T) {
	create := op{mark: mark{"a", 1}, verb: "create", code: 201, rev: 5}
	update := func(write, code int) op { return op{mark: mark{"a", write}, verb: "update", code: code} }
	remove := func(code int) op { return op{mark: mark{object: "a"}, verb: "delete", code: code} }
	put := func(rev int64, write int) event { return event{key: "k", rev: rev, mark: mark{"a", write}} }
	gone := func(rev int64, write int) event {
		return event{key: "k", rev: rev, gone: true, before: mark{"a", write}}
	}
	doomed := create
	doomed.doomed = true
	for name, c := range map[string]struct {
		ops    []op
		events []event
		ok     bool
	}{
		"created":                      {[]op{create}, []event{put(5, 1)}, true},
		"vanished":                     {[]op{create}, []event{put(5, 1), gone(6, 1)}, false},
		"vanished with its namespace":  {[]op{doomed}, []event{put(5, 1), gone(6, 1)}, true},
		"updated":                      {[]op{create, update(2, 200)}, []event{put(5, 1), put(6, 2)}, true},
		"set back":                     {[]op{create, update(2, 200)}, []event{put(5, 2), put(6, 1)}, false},
		"updated late":                 {[]op{create, update(2, 0), update(3, 200)}, []event{put(5, 1), put(6, 3), put(7, 2)}, true},
		"deleted":                      {[]op{create, remove(200)}, []event{put(5, 1), gone(6, 1)}, true},
		"deleted at the second try":    {[]op{create, remove(0), remove(404)}, []event{put(5, 1), gone(6, 1)}, true},
		"deleted and there":            {[]op{create, remove(200)}, []event{put(5, 1)}, false},
		"deletion unknown":             {[]op{create, remove(503)}, []event{put(5, 1)}, true},
		"deletion refused, but gone":   {[]op{create, remove(409)}, []event{put(5, 1), gone(6, 1)}, false},
		"update refused on old state":  {[]op{create, update(2, 404)}, []event{put(5, 1)}, false},
		"update refused, as it should": {[]op{create, update(2, 409)}, []event{put(5, 1)}, true},
	} {
		if wrong := checkObjects(c.ops, c.events); (wrong == nil) != c.ok {
			t.Errorf("%s: %q", name, wrong)
		}
	}
}

func TestCheckOrphans(t *testing.T) {
	const maps = "/registry/k/core/configmaps/-/"
	events := []event{
		{key: maps + "stays/default/a"}, {key: maps + "stays/gone/b"}, {key: maps + "went/default/c"}, {key: maps + "went/default/d"},
		{key: maps + "went/default/d", gone: true}, {key: "/registry/k/core/namespaces/-/stays/default"}, {key: "/registry/k/core/namespaces/-/stays/gone"},
		{key: "/registry/k/core.kcp.io/logicalclusters/-/went/cluster"}, {key: "/elsewhere"},
	}
	got := checkOrphans(events, map[string]bool{"stays": true}, map[place]bool{{"stays", "gone"}: true})
	if len(got) != 4 {
		t.Errorf("%d orphans, want 4: %q", len(got), got)
	}
}

func TestCheckRevoked(t *testing.T) {
	at := time.Now()
	revoked := map[string]time.Time{"u": at}
	for name, c := range map[string]struct {
		p     probe
		wrong bool
	}{
		"before":               {probe{user: "u", began: at.Add(-time.Second), code: 200}, false},
		"in time":              {probe{user: "u", began: at.Add(revokedWithin), code: 200}, false},
		"late":                 {probe{user: "u", began: at.Add(revokedWithin + 1), code: 201}, true},
		"late, refused":        {probe{user: "u", began: at.Add(time.Second), code: 403}, false},
		"late, no answer":      {probe{user: "u", began: at.Add(time.Second)}, false},
		"of a user with right": {probe{user: "v", began: at.Add(time.Second), code: 200}, false},
	} {
		if wrong := checkRevoked([]probe{c.p}, revoked); (wrong != nil) != c.wrong {
			t.Errorf("%s: %q", name, wrong)
		}
	}
}

func TestCheckTakeovers(t *testing.T) {
	if wrong := checkTakeovers([]takeover{{"kill", takenOverWithin}, {"stop", takenOverWithin + 1}}); len(wrong) != 1 {
		t.Errorf("%q, want one", wrong)
	}
}

func TestMarks(t *testing.T) {
	for _, m := range []mark{{"w1-2", 3}, {}} {
		if got := markIn([]byte("\x00k8s" + m.String() + "\x12")); m.object != "" && got != m {
			t.Errorf("%v, want %v", got, m)
		}
	}
	if got := markIn([]byte("nothing")); got != (mark{}) {
		t.Errorf("%v in a value without mark", got)
	}
}

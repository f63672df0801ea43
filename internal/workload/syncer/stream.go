package syncer

import (
	"slices"
	"sort"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/workload/engine"
)

// mostGone is the number of deletions that a stream remembers beyond those of objects that it has.
const mostGone = 1000

// An id identifies an object in a stream.
type id struct {
	of  schema.GroupResource
	key kcp.Key
	// need is set for referenced objects, such as ConfigMaps: it is their resource, while of is that of workloads.
	need schema.GroupResource
}

// name returns the name that the object has in lists and watches.
func (i *id) name() string {
	if i.need == (schema.GroupResource{}) {
		return i.key.Name
	}
	return engine.AssignmentName(i.need, i.key.Name)
}

// An entry is the last change of an object in a stream.
type entry struct {
	added   int64  // the version at which the object came into the stream
	version int64  // of the last change
	hash    string // of the object; empty once it is gone
}

// A logged is a change in the log of a stream. It counts only while it is the last one of its
// object: a watch that is behind gets the newest state of each object, once.
type logged struct {
	version int64
	id      id
}

// A stream has the changes of what one target may see. Its versions grow, so that a watch resumes
// after a version that it has seen. It has one log for all watches: a slow one costs nothing.
type stream struct {
	mu      sync.Mutex
	version int64 // of the newest change
	oldest  int64 // a watch cannot resume before this version
	entries map[id]*entry
	gone    int // entries of objects that are gone
	log     []logged
	changed chan struct{} // closed at the next change

	asks flowcontrol.PassiveRateLimiter // for questions of the agent that cost the server many reads
}

// questions is how many expensive questions an agent may ask per second, and at once.
const (
	questionsPerSecond = 5
	questionsAtOnce    = 50
)

func newStream(version int64) *stream {
	return &stream{version: version, oldest: version, entries: map[id]*entry{}, changed: make(chan struct{}),
		asks: flowcontrol.NewTokenBucketPassiveRateLimiter(questionsPerSecond, questionsAtOnce)}
}

// set records a change of an object. now returns the object as the target sees it, nil if it does
// not. It runs with the lock held: the last change sees the newest state.
func (s *stream) set(of id, now func() *unstructured.Unstructured) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hash := hashOf(now())
	e := s.entries[of]
	switch {
	case e == nil && hash == "", e != nil && e.hash == hash:
		return
	case e == nil:
		e = &entry{}
		s.entries[of] = e
	case e.hash == "":
		s.gone--
	}
	s.version++
	if e.hash == "" {
		e.added = s.version
	}
	e.version, e.hash = s.version, hash
	if hash == "" {
		s.gone++
	}
	s.log = append(s.log, logged{s.version, of})
	s.trim()
	close(s.changed)
	s.changed = make(chan struct{})
}

// trim forgets changes that others followed, and the oldest deletions.
func (s *stream) trim() {
	if len(s.log) < 2*(len(s.entries)-s.gone+mostGone) {
		return
	}
	drop := max(0, s.gone-mostGone/2)
	s.log = slices.DeleteFunc(s.log, func(l logged) bool {
		e := s.entries[l.id]
		if e == nil || e.version != l.version {
			return true
		}
		if e.hash == "" && drop > 0 {
			drop--
			s.gone--
			s.oldest = max(s.oldest, l.version)
			delete(s.entries, l.id)
			return true
		}
		return false
	})
}

// A change is what a watch sends.
type change struct {
	id      id
	version int64
	added   bool
	gone    bool
}

// since returns the changes of the resources of a watch after the version of each, the version of the newest change,
// and a channel that is closed at the next change. It reports false if it has forgotten changes.
func (s *stream) since(versions map[schema.GroupResource]int64) (changes []change, newest int64, next <-chan struct{}, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.version
	for _, version := range versions {
		if version < s.oldest || version > s.version {
			return nil, 0, nil, false
		}
		first = min(first, version)
	}
	from := sort.Search(len(s.log), func(i int) bool { return s.log[i].version > first })
	for _, l := range s.log[from:] {
		e := s.entries[l.id]
		if after, watched := versions[l.id.of]; watched && l.version > after && e != nil && e.version == l.version {
			changes = append(changes, change{l.id, l.version, e.added > after, e.hash == ""})
		}
	}
	return changes, s.version, s.changed, true
}

// all returns the objects of a resource with their versions, and the version of the list.
func (s *stream) all(of schema.GroupResource) (found []change, version int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, e := range s.entries {
		if i.of == of && e.hash != "" {
			found = append(found, change{id: i, version: e.version})
		}
	}
	slices.SortFunc(found, func(a, b change) int { return int(min(1, max(-1, a.version-b.version))) })
	return found, s.version
}

package consumers

import (
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/workload/engine"
	"github.com/unforked/kcp/internal/workload/profile"
)

func refKey(id engine.ID) string {
	return namespaceKey(id.Key) + "/" + id.Resource + "/" + id.Key.Name
}

// RefersTo returns what an object of the kind refers to.
func (k *Kind) RefersTo(o *unstructured.Unstructured) (all []engine.ID) {
	at := engine.ID{Key: kcp.KeyOf(o)}
	for _, r := range k.Refs(o) {
		all = append(all, at.Beside(schema.GroupResource{Resource: r.Resource}, r.Name))
	}
	if k.Class == profile.Dependency { // a service account
		secrets, _, err := unstructured.NestedSlice(o.Object, "imagePullSecrets")
		for _, s := range secrets[:min(len(secrets), profile.MostRefs)] {
			if m, ok := s.(map[string]any); ok && err == nil {
				if name, _ := m["name"].(string); name != "" {
					all = append(all, at.Beside(profile.Secrets().GroupResource(), name))
				}
			}
		}
	}
	return all
}

// needs returns the dependencies of an object, and those of its service account.
func (c *Cache) needs(id engine.ID) []engine.ID {
	k := c.Kind(id.GroupResource)
	if k == nil {
		return nil
	}
	w := k.Objects.Get(id.Key)
	if w == nil {
		return nil
	}
	return c.needsOf(k, w)
}

func (c *Cache) needsOf(k *Kind, w *unstructured.Unstructured) (all []engine.ID) {
	for _, ref := range k.RefersTo(w) {
		of := c.Kind(ref.GroupResource)
		if of == nil || of.Class != profile.Dependency {
			continue
		}
		all = append(all, ref)
		if o := of.Objects.Get(ref.Key); o != nil {
			all = append(all, of.RefersTo(o)...)
		}
	}
	return all
}

// Users returns the objects that refer to an object, directly or by their service account.
func (c *Cache) Users(id engine.ID) (users []engine.ID) {
	key := refKey(id)
	for _, k := range c.Kinds() {
		for _, user := range k.Objects.By(byRef, key) {
			of := engine.ID{GroupResource: k.GroupResource(), Key: user}
			if k.Class == profile.Dependency {
				users = append(users, c.Users(of)...) // those of a service account, to which no dependency refers
				continue
			}
			users = append(users, of)
		}
	}
	return users
}

// usedAt reports whether an object that refers to another one, directly or by its service account, has a part at a
// target.
func (c *Cache) usedAt(target string, id engine.ID) bool {
	key := refKey(id)
	return slices.ContainsFunc(c.Kinds(), func(k *Kind) bool {
		return slices.ContainsFunc(k.Objects.By(byRef, key), func(user kcp.Key) bool {
			of := engine.ID{GroupResource: k.GroupResource(), Key: user}
			if k.Class == profile.Dependency {
				return c.usedAt(target, of)
			}
			a := c.Assignment(of)
			return a != nil && PartAt(a, target) != nil
		})
	})
}

// Wakes is a source that wakes a loop with keys(k, o) when an object that may have an Assignment is added,
// changed or deleted. For a change, o is both the old and the new object.
func (c *Cache) Wakes(keys func(*Kind, *unstructured.Unstructured) []kcp.Key) kcp.Source {
	return kcp.Source{Ready: c.settled, Subscribe: func(wake func(kcp.Key)) func() {
		changed := func(k *Kind, o *unstructured.Unstructured) {
			for _, key := range keys(k, o) {
				wake(key)
			}
		}
		leave := c.loops.add(changed)
		for _, k := range c.Kinds() {
			if k.Class == profile.Dependency {
				continue
			}
			for _, o := range k.Objects.List("*") {
				changed(k, o)
			}
		}
		return leave
	}}
}

// changed makes the loops and the engines look at an object that changed. It is called with the
// old and the new one.
func (c *Cache) changed(k *Kind, w *unstructured.Unstructured) {
	id := engine.ID{GroupResource: k.GroupResource(), Key: kcp.KeyOf(w)}
	for _, changed := range c.loops.list() {
		(*changed)(k, w)
	}
	for _, ref := range k.RefersTo(w) {
		if of := c.Kind(ref.GroupResource); of != nil && of.Class == profile.Dependency {
			of.begin()
		}
	}
	a := c.Assignment(id)
	if a == nil {
		return
	}
	c.wakeAll(a, id)
	for _, of := range c.needsOf(k, w) {
		c.wakeAll(a, of)
	}
}

// dependencyChanged makes the engines look at a dependency that changed. With a service account, its users may refer to
// other Secrets.
func (c *Cache) dependencyChanged(k *Kind, o *unstructured.Unstructured) {
	id := engine.ID{GroupResource: k.GroupResource(), Key: kcp.KeyOf(o)}
	refs := k.RefersTo(o)
	if len(refs) > 0 {
		c.Kind(profile.Secrets().GroupResource()).begin()
	}
	for _, user := range c.Users(id) {
		a := c.Assignment(user)
		if a == nil {
			continue
		}
		c.wakeAll(a, id)
		if k.Resource == profile.ServiceAccounts().Resource {
			c.wakeAll(a, user)
		}
		for _, ref := range refs {
			c.wakeAll(a, ref)
		}
	}
}

// dispatches returns the sources of changes that concern engines. They wake the engines that a change
// concerns, and no others.
func (c *Cache) dispatches() []kcp.Source {
	return []kcp.Source{
		// An Assignment that was deleted still names its targets.
		c.Assignments.Wakes(func(a *workload.Assignment) []kcp.Key {
			id := engine.IDFor(a, a.Spec.Workload)
			c.wakeAll(a, id)
			for _, of := range c.needs(id) {
				c.wakeAll(a, of)
			}
			return nil
		}),
		c.Reports.Wakes(func(s *workload.TargetStatus) []kcp.Key {
			c.wake(s.Spec.Key, engine.IDFor(s, s.Spec.Workload).Task())
			return nil
		}),
	}
}

// wakeAll wakes the engines of an Assignment to work on an object.
func (c *Cache) wakeAll(a *workload.Assignment, id engine.ID) {
	for _, t := range a.Spec.Targets {
		c.wake(t.Key, id.Task())
	}
}

// wake wakes the engine of a target, and the listeners of agents.
func (c *Cache) wake(target string, key kcp.Key) {
	c.enginesMu.Lock()
	if wake := c.engines[target]; wake != nil {
		wake(key)
	}
	c.enginesMu.Unlock()
	c.tellAgents(target, engine.IDOf(key))
}

// tellAgents tells all who listen for agents.
func (c *Cache) tellAgents(target string, of engine.ID) {
	for _, hear := range c.agents.list() {
		(*hear)(target, of)
	}
}

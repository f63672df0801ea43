package evolve

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	runtimeschema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	apis "github.com/unforked/kcp/apis/apis/v1alpha1"
	"github.com/unforked/kcp/internal/resources/catalog"
	"github.com/unforked/kcp/internal/resources/serve"
	"github.com/unforked/kcp/internal/sharing/bind"
)

const (
	maxBreaks = 8   // of one object
	maxText   = 256 // bytes of a path or message
)

// A shape is how a schema serves objects.
type shape struct {
	content *catalog.Content
	full    *serve.Inspector
	bare    *serve.Inspector // without defaults; only of schemas in use
}

func (c *Checker) shape(content *catalog.Content) (*shape, error) {
	full, err := c.Inspect(content, false)
	return &shape{content: content, full: full}, err
}

// before returns the shape with which a consumer is served the objects of a target now, nil if
// none.
func (w *walk) before(t *target, c bind.Consumer) (*shape, error) {
	if s, ok := t.shapes[c.Bound.UID]; ok {
		return s, nil
	}
	var s *shape
	if content, ok := w.APIs.Served(w.request.Export.Cluster, c.Bound); ok {
		var err error
		if s, err = w.shape(content); err == nil {
			s.bare, err = w.Inspect(content, true)
		}
		if err != nil {
			return nil, fmt.Errorf("the schema %s, which is in use: %w", c.Bound.Schema, err)
		}
	}
	t.shapes[c.Bound.UID] = s
	return s, nil
}

// stored is an object as it is stored.
type stored struct {
	text []byte
	runtimeschema.GroupVersion
}

// A found is a break, with a kind that distinguishes it from others at the same field.
type found struct {
	apis.ObjectBreak
	kind string
}

// breaks returns what a schema breaks in an object. It leaves out breaks that the object has
// with the shape before, and reports whether it can be read with that.
func (s *shape) breaks(ctx context.Context, o stored, before *shape) (_ []found, readable bool) {
	all := &breakList{}
	versions, err := s.full.In(o.GroupVersion)
	if err != nil {
		if readable = before.reads(o, o.Version); readable {
			all.add(apis.Unreadable, o.Version, nil, err.Error())
		}
		return all.found, readable
	}
	readable = true
	for _, v := range versions {
		if _, served := s.full.Has(v); !served {
			continue
		}
		now, err := s.full.Read(o.text, v)
		if err != nil {
			if before.reads(o, v) {
				all.add(apis.Unreadable, v, nil, err.Error())
			} else {
				readable = false
			}
			continue
		}
		errs := s.full.Validate(ctx, now, v)
		if len(errs) == 0 {
			continue
		}
		had := before.errors(ctx, o, v)
		for _, e := range errs {
			if !had[e.Error()] {
				all.add(apis.Invalid, v, e, e.ErrorBody())
			}
		}
	}
	if len(all.found) < maxBreaks {
		s.lost(o, before, all)
	}
	return all.found, readable
}

// lost adds the fields that the next write of an object deletes.
func (s *shape) lost(o stored, before *shape, all *breakList) {
	if before == nil {
		return
	}
	rewritten := o.text
	if to := s.full.Storage; to != o.Version && !s.full.External {
		read, err := s.full.Read(o.text, to)
		if err != nil {
			all.add(apis.Unreadable, to, nil, err.Error())
			return
		}
		if rewritten, err = read.MarshalJSON(); err != nil {
			all.add(apis.Unreadable, to, nil, err.Error())
			return
		}
	}
	versions, err := before.bare.In(o.GroupVersion)
	if err != nil {
		return // it was unreadable before
	}
	for _, v := range versions {
		if known, _ := s.full.Has(v); !known || s.full.External && v != o.Version {
			continue
		}
		was, err := before.bare.Read(o.text, v)
		if err != nil {
			continue
		}
		is, err := s.full.Read(rewritten, v)
		if err != nil {
			continue // Unreadable already, if v is served
		}
		for _, path := range missing(was, is) {
			all.add(apis.FieldLost, v, &field.Error{Field: path}, "the schema has no such field; the next write of the object deletes it")
		}
	}
}

// missing returns the paths of fields that an object had and has no more.
func missing(was, is *unstructured.Unstructured) []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(was.Object)) {
		if name == "apiVersion" || name == "kind" || name == "metadata" {
			continue
		}
		if now, ok := is.Object[name]; ok {
			all = missingIn(all, name, was.Object[name], now)
		} else if was.Object[name] != nil {
			all = append(all, name)
		}
	}
	return all
}

// missingIn adds the paths of fields below a path.
func missingIn(all []string, path string, was, is any) []string {
	if len(all) >= maxBreaks {
		return all
	}
	switch was := was.(type) {
	case map[string]any:
		is, _ := is.(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(was)) {
			if now, ok := is[name]; ok {
				all = missingIn(all, path+"."+name, was[name], now)
			} else if was[name] != nil {
				all = append(all, path+"."+name)
			}
		}
	case []any:
		is, _ := is.([]any)
		for i := range was {
			if i < len(is) {
				all = missingIn(all, fmt.Sprintf("%s[%d]", path, i), was[i], is[i])
			} else {
				all = append(all, fmt.Sprintf("%s[%d]", path, i))
			}
		}
	}
	return all
}

// reads reports whether an object can be read in a version. In one that a schema does not serve,
// it cannot be known that the object was unreadable.
func (s *shape) reads(o stored, version string) bool {
	if s == nil {
		return true
	}
	if _, err := s.full.In(o.GroupVersion); err != nil {
		return false
	}
	if _, served := s.full.Has(version); !served || s.full.External {
		return true
	}
	_, err := s.full.Read(o.text, version)
	return err == nil
}

// errors returns what is wrong with an object in a version.
func (s *shape) errors(ctx context.Context, o stored, version string) map[string]bool {
	if s == nil {
		return nil
	}
	if _, served := s.full.Has(version); !served || s.full.External && version != o.Version {
		return nil
	}
	read, err := s.full.Read(o.text, version)
	if err != nil {
		return nil
	}
	all := map[string]bool{}
	for _, e := range s.full.Validate(ctx, read, version) {
		all[e.Error()] = true
	}
	return all
}

// A breakList collects the breaks of one object.
type breakList struct{ found []found }

// add adds a break, unless it is there in another version.
func (l *breakList) add(reason apis.BreakReason, version string, at *field.Error, message string) {
	b := found{ObjectBreak: apis.ObjectBreak{Reason: reason, Version: version, Message: shortened(message)}}
	if at != nil {
		if at.Field != "<nil>" {
			b.Field = shortened(at.Field)
		}
		b.kind = shortened(string(at.Type) + at.Detail)
	}
	same := func(o found) bool { return o.Reason == reason && o.Field == b.Field && o.Message == b.Message }
	if len(l.found) < maxBreaks && !slices.ContainsFunc(l.found, same) {
		l.found = append(l.found, b)
	}
}

// shortened returns at most maxText bytes of a text.
func shortened(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "…"
}

package engine

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/internal/workload/profile"
)

// follow syncs a dependency: the target has it while it has an object that refers to it. A dependency has
// no report. The reports of the objects that refer to it say whether it is missing.
func (j *job) follow(ctx context.Context) error {
	if why := j.await(ctx); why != nil {
		if why.word == "" {
			return kcp.After(soon)
		}
		return again()
	}
	if j.have = j.holding.get(j.from, j.id.Key.Name); j.have != nil && !owned(j.have, j.from) {
		j.have = nil
	}
	if j.have != nil {
		j.keepNamespace()
	}
	users := j.desired.Users(j.id)
	if len(users) == 0 {
		return j.unfollow(ctx)
	}
	why, err := j.copy(ctx)
	if err == nil {
		for _, of := range users {
			j.wakeLoop(of.Task()) // their reports say whether it is missing
		}
	}
	if err == nil && why != "" {
		return again()
	}
	return err
}

// unfollow removes an object that no other object refers to any more.
func (j *job) unfollow(ctx context.Context) error {
	if j.have == nil {
		return j.dropNamespace(ctx)
	}
	if unused, err := j.desired.Unused(ctx, j.id); err != nil || !unused {
		return err
	}
	return j.delete(ctx)
}

// copy brings the copy of an object in the physical cluster up to date. If that is not possible, it
// says why.
func (j *job) copy(ctx context.Context) (string, error) {
	o, why, withdrawn, err := j.desired.Dependency(ctx, j.id)
	if err != nil {
		return "", err
	}
	if o == nil {
		if withdrawn && j.have != nil {
			return why, j.delete(ctx)
		}
		return why, nil
	}
	want, err := desired(j.profile, o, nil, j.from)
	if err != nil {
		return "", err
	}
	if j.have != nil && marked(want, j.have) && fingerprint(want) == j.have.GetGeneration() {
		return "", nil
	}
	return j.putCopy(ctx, want)
}

func (j *job) putCopy(ctx context.Context, want *object) (string, error) {
	if j.have == nil {
		found, err := j.read(ctx)
		if err != nil {
			return "", err
		}
		if found != nil && !owned(found, j.from) {
			return "exists in the physical cluster and was not created by this workspace", nil
		}
		if found == nil {
			if !j.room() {
				return "is not copied: " + j.full(), nil
			}
			if ok, err := j.ensureNamespace(ctx); err != nil || !ok {
				return "", err
			}
		}
		j.have = found
	}
	if j.have != nil {
		if j.have.GetDeletionTimestamp() != nil {
			return "", nil
		}
		want.SetUID(j.have.GetUID())
	}
	made, err := j.objects().Apply(ctx, want.GetName(), want, metav1.ApplyOptions{FieldManager: manager, Force: j.have != nil})
	switch {
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err):
		return refusal(err), nil
	case err != nil:
		j.forgetNamespace()
		return "", err
	}
	if j.holding.get(j.from, made.GetName()) == nil {
		j.written.Store(made.GetUID(), true)
	}
	return "", nil
}

// needs brings what the workload refers to to the physical cluster, and returns what is missing
// there.
func (j *job) needs(ctx context.Context) (missing []string, err error) {
	for _, ref := range j.profile.Refs(j.want) {
		id := j.id.Beside(schema.GroupResource{Resource: ref.Resource}, ref.Name)
		p := j.desired.Profile(id.GroupResource)
		if p == nil || p.Class != profile.Dependency {
			continue
		}
		why, err := j.need(ctx, id, p)
		if err != nil {
			return nil, err
		}
		if why != "" && !ref.Optional {
			missing = append(missing, limited(fmt.Sprintf("%s %q %s", ref.Resource, ref.Name, why)))
		}
	}
	return missing, nil
}

// need brings one object to the physical cluster, unless it is there.
func (j *job) need(ctx context.Context, id ID, p *profile.Profile) (string, error) {
	of := &job{Engine: j.Engine, profile: p, id: id, from: j.from}
	if of.holding = j.hold(p); of.holding == nil {
		return "", context.Canceled
	}
	defer j.release(of.holding)
	if why := of.await(ctx); why != nil {
		if why.word == "" {
			return "", kcp.After(soon)
		}
		return "cannot be copied: " + why.text, nil
	}
	if of.have = of.holding.get(of.from, id.Key.Name); of.have != nil && owned(of.have, of.from) && of.have.GetDeletionTimestamp() == nil {
		return "", nil // its own task keeps it up to date
	}
	of.have = nil
	return of.copy(ctx)
}

package provider

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
)

// Replicas splits the tenants of an export over all processes that use the same export and
// namespace. Each tenant is served by one of them. When a process ends, the others take over
// its tenants within a fifth of LeaseDuration; when it dies, after LeaseDuration.
//
// Each process has one Lease, which it renews. There are 64 more Leases, one for each share of
// the tenants; they are written only when a share moves. A process that cannot renew its Lease
// in time sends no more requests to its tenants. All processes keep the objects of all tenants
// in memory. They must not use leader election.
type Replicas struct {
	// Name begins the name of the process's Lease. The default is the host name.
	Name string
	// Namespace is that of the Leases, in the workspace of the export. The default is
	// "default".
	Namespace string
	// LeaseDuration is how long a dead process keeps its tenants. The default is 15 seconds.
	LeaseDuration time.Duration
}

// exportLabel marks the Leases of an export. Its value is a hash: names can be too long for it.
const exportLabel = "kcp-provider"

// shares are the shares of this replica. It works through rounds: renew the own lease, look at
// all leases, and take or yield shares.
type shares struct {
	self     string
	export   string
	duration time.Duration
	leases   coordination.LeaseInterface
	log      logr.Logger
	changed  func() // called after shares were taken or dropped; disengages their tenants

	all     [shareCount]share
	own     lease
	created bool                // whether there is a lease of the name self
	seen    map[string]sighting // by name of replica; of the loop
}

// A sighting is when this replica first saw a state of another replica's lease. Clocks of
// replicas may differ, so their times are not compared.
type sighting struct {
	version string
	at      time.Time
}

func newShares(cfg *rest.Config, export string, o Replicas, log logr.Logger) (*shares, error) {
	if o.Name == "" {
		var err error
		if o.Name, err = os.Hostname(); err != nil {
			return nil, fmt.Errorf("set Name of Replicas: %w", err)
		}
	}
	if o.Namespace == "" {
		o.Namespace = metav1.NamespaceDefault
	}
	if o.LeaseDuration == 0 {
		o.LeaseDuration = 15 * time.Second
	}
	if o.LeaseDuration < time.Second {
		return nil, fmt.Errorf("the LeaseDuration of Replicas is %v; it must be at least 1s", o.LeaseDuration)
	}
	requests, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	self := strings.ToLower(o.Name) + "-" + suffix() // a new one after each start
	s := &shares{
		self: self, export: export, duration: o.LeaseDuration, log: log.WithValues("replica", self),
		leases: requests.CoordinationV1().Leases(o.Namespace), seen: map[string]sighting{},
	}
	for i := range s.all {
		s.all[i].until = &s.own
	}
	return s, nil
}

// of returns the share of a tenant.
func (s *shares) of(tenant string) *share { return &s.all[shareOf(tenant)] }

// run works until ctx ends, and then frees the shares.
func (s *shares) run(ctx context.Context) {
	tick := time.NewTicker(s.duration / 5)
	defer tick.Stop()
	for {
		if err := s.round(ctx); err != nil && ctx.Err() == nil {
			s.log.Error(err, "cannot renew the lease, or see those of other replicas; will retry")
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			s.end()
			return
		}
	}
}

// round renews the lease of this replica and adjusts its shares.
func (s *shares) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.duration/3) // half of the time for which a renewal counts
	defer cancel()
	if err := s.renew(ctx); err != nil {
		if s.created && !s.own.valid() {
			s.rename()
		}
		return err
	}
	now := time.Now() // before the list: a replica that renews later is live
	list, err := s.leases.List(ctx, metav1.ListOptions{LabelSelector: exportLabel + "=" + s.label()})
	if err != nil {
		return err
	}
	live, dead, held := s.look(list.Items, now)
	holders := map[int]string{}
	for i, l := range held {
		if l.Spec.HolderIdentity != nil {
			holders[i] = *l.Spec.HolderIdentity
		}
	}
	p := decide(s.self, live, holders)
	err = s.follow(ctx, p, held)
	for _, name := range dead {
		// Its shares are free by now, or are once it is gone.
		if gone := s.leases.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: new(s.seen[name].version)}}); gone != nil && !apierrors.IsNotFound(gone) && !apierrors.IsConflict(gone) {
			err = errors.Join(err, gone)
		}
	}
	return err
}

// renew renews the lease of this replica. Other replicas wait for the whole duration after they
// saw a renewal; this one gives up after two thirds of it.
func (s *shares) renew(ctx context.Context) error {
	if s.created && !s.own.valid() {
		s.rename()
	}
	until := time.Now().Add(s.duration * 2 / 3)
	l := s.leaseOf(s.self)
	l.Name = s.leaseName()
	var err error
	if !s.created {
		_, err = s.leases.Create(ctx, l, metav1.CreateOptions{})
	} else { // a patch: the response to the last one may have been lost
		now := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, l.Spec.RenewTime.UTC().Format(metav1.RFC3339Micro))
		_, err = s.leases.Patch(ctx, l.Name, types.MergePatchType, []byte(now), metav1.PatchOptions{})
	}
	switch {
	case apierrors.IsNotFound(err), apierrors.IsAlreadyExists(err):
		s.rename() // another replica took this one for dead, or the response to Create was lost
		return err
	case err != nil:
		return err // perhaps it was renewed: not counted
	case s.created && !s.own.valid():
		s.rename()
		return errors.New("the lease was renewed too late")
	}
	s.created = true
	s.own.extend(until)
	return nil
}

// rename drops all shares and continues under a new name. Under the old one, another replica
// may be taking them: it has seen the old lease expire.
func (s *shares) rename() {
	s.loseAll()
	s.self = s.self[:strings.LastIndexByte(s.self, '-')+1] + suffix()
	s.created = false
}

func suffix() string { return fmt.Sprintf("%08x", rand.Uint32()) }

func (s *shares) leaseName() string { return s.export + ".replica-" + s.self }

func (s *shares) label() string { return strconv.FormatUint(hash(s.export), 16) }

// leaseOf returns a lease with a holder.
func (s *shares) leaseOf(holder string) *coordinationv1.Lease {
	seconds := int32((s.duration + time.Second - 1) / time.Second)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{exportLabel: s.label()}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: new(metav1.NowMicro())},
	}
}

// look returns the live replicas, the leases of dead ones, and the leases of the shares.
func (s *shares) look(all []coordinationv1.Lease, now time.Time) (live map[string]bool, dead []string, held map[int]*coordinationv1.Lease) {
	live, held = map[string]bool{}, map[int]*coordinationv1.Lease{}
	seen := map[string]sighting{}
	for i := range all {
		l := &all[i]
		if replica, ok := strings.CutPrefix(l.Name, s.export+".replica-"); ok {
			at := s.seen[l.Name]
			if at.version != l.ResourceVersion {
				at = sighting{l.ResourceVersion, now}
			}
			seen[l.Name] = at
			if now.Sub(at.at) < s.duration {
				live[replica] = true
			} else {
				dead = append(dead, l.Name)
			}
		}
		if number, ok := strings.CutPrefix(l.Name, s.export+".share-"); ok {
			if n, err := strconv.Atoi(number); err == nil && n >= 0 && n < shareCount {
				held[n] = l
			}
		}
	}
	s.seen = seen
	return live, dead, held
}

// follow takes and yields shares. The tenants of a share are disengaged before another replica
// can take it.
func (s *shares) follow(ctx context.Context, p plan, held map[int]*coordinationv1.Lease) error {
	keep := map[int]bool{}
	for _, i := range p.keep {
		keep[i] = true
	}
	moved := false
	for i := range s.all { // also those that another replica has taken while this one was late
		moved = s.all[i].set(keep[i]) || moved
	}
	if moved {
		s.changed()
	}
	var all error
	for _, i := range p.yield {
		all = errors.Join(all, s.write(ctx, i, "", held[i]))
	}
	taken := 0
	for _, i := range p.take {
		err := s.write(ctx, i, s.self, held[i])
		if ctx.Err() != nil {
			break // the next round takes the others, and finds this one if it was written
		}
		if err == nil && s.all[i].set(true) {
			taken++
		}
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) { // another one was faster
			all = errors.Join(all, err)
		}
	}
	if taken > 0 {
		s.changed()
	}
	if moved || taken > 0 {
		s.log.V(1).Info("shares moved", "kept", len(p.keep), "yielded", len(p.yield), "taken", taken)
	}
	return all
}

// write sets the holder of a share, if its lease is as it was seen.
func (s *shares) write(ctx context.Context, i int, holder string, seen *coordinationv1.Lease) error {
	l := s.leaseOf(holder)
	l.Name = s.export + ".share-" + strconv.Itoa(i)
	if seen == nil {
		_, err := s.leases.Create(ctx, l, metav1.CreateOptions{})
		return err
	}
	l.ResourceVersion = seen.ResourceVersion
	_, err := s.leases.Update(ctx, l, metav1.UpdateOptions{})
	return err
}

// loseAll drops all shares.
func (s *shares) loseAll() {
	moved := false
	for i := range s.all {
		moved = s.all[i].set(false) || moved
	}
	if moved {
		s.log.Info("the lease of this replica expired; its tenants are disengaged")
		s.changed()
	}
}

// end drops all shares, and deletes the lease, so that other replicas take over at once.
func (s *shares) end() {
	s.loseAll()
	if !s.created {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.duration/5)
	defer cancel()
	if err := s.leases.Delete(ctx, s.leaseName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		s.log.Error(err, "cannot delete the lease; other replicas take over when it expires")
	}
}

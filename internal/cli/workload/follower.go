package workload

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	scheduling "github.com/unforked/kcp/apis/scheduling/v1alpha1"
	workload "github.com/unforked/kcp/apis/workload/v1alpha1"
	"github.com/unforked/kcp/internal/cli/command"
	"github.com/unforked/kcp/internal/cli/output"
	"github.com/unforked/kcp/internal/cli/remote"
)

// The scheduler does not choose targets for objects such as Services and ConfigMaps: they are where workloads
// are. So PlacementReviews do not answer for them, and the commands find their workloads.

// how says how a kind comes to physical clusters.
type how int

const (
	unplaced how = iota // it does not, as far as is known
	scaled              // it does not: the server does what it says
	follows             // it is where its namespace has a workload
	referred            // it is where an object refers to it
	stays               // it is where the first workload that uses it is
)

// howOf returns how a kind comes to physical clusters. Kinds with a ResourceProfile that follow have Assignments.
func howOf(of schema.GroupResource, assigned bool) how {
	switch of.String() {
	case "services", "ingresses.networking.k8s.io", "networkpolicies.networking.k8s.io", "poddisruptionbudgets.policy":
		return follows
	case "configmaps", "secrets", "serviceaccounts":
		return referred
	case "persistentvolumeclaims":
		return stays
	case "horizontalpodautoscalers.autoscaling":
		return scaled
	}
	if assigned {
		return follows
	}
	return unplaced
}

// explainFollower says where an object is that no PlacementReview answers for, and why.
func explainFollower(ctx context.Context, a *command.App, srv *remote.Server, of found) error {
	here := srv.Base.Path
	w, err := of.get(ctx, srv)
	if err != nil {
		return err
	}
	it := fmt.Sprintf("%s %q", w.GetKind(), w.GetName())
	if !of.namespaced {
		a.Print.Say("%s goes to no physical cluster: only objects in namespaces do.", it)
		return nil
	}
	placed, err := assignmentsIn(ctx, srv, of.namespace)
	if err != nil {
		return remote.About(here, "cannot read where the workloads of namespace %q run: %w", of.namespace, err)
	}
	var own *workload.Assignment
	others := slices.DeleteFunc(placed, func(p *workload.Assignment) bool {
		if p.Spec.Workload.UID == string(w.GetUID()) {
			own = p
			return true
		}
		return false
	})
	kind := howOf(of.GroupResource(), own != nil)
	switch {
	case w.GetDeletionTimestamp() != nil:
		a.Print.Say("%s is being deleted.", it)
		return nil
	case own == nil && isRevision(w):
		d := metav1.GetControllerOfNoCopy(w).Name
		a.Print.Say("%s is a revision of the Deployment %q and goes to no physical cluster: each has ReplicaSets of its own. To see where the Deployment runs, run: kubectl kcp workload explain deployment/%s", it, d, d)
		return nil
	case kind == unplaced && custom(of.Group):
		a.Print.Say("%s is in no physical cluster: its kind is not one that they run, or follows workloads and none of its namespace is placed.", it)
		return nil
	case kind == unplaced:
		a.Print.Say("%s goes to no physical cluster: its kind is not one that physical clusters run.", it)
		return nil
	case kind == scaled:
		a.Print.Say("%s goes to no physical cluster: the server scales its workload, wherever that runs.", it)
		return nil
	case kind == referred && native(of):
		a.Print.Say("%s goes to no physical cluster: each physical cluster has its own.", it)
		return nil
	}
	reports, err := reportsIn(ctx, srv, of.namespace)
	if err != nil {
		return remote.About(here, "cannot read the reports of physical clusters about namespace %q: %w", of.namespace, err)
	}
	carriers, err := carriersOf(ctx, srv, of, kind, others)
	if err != nil {
		return remote.About(here, "cannot find the workloads of namespace %q: %w", of.namespace, err)
	}
	printFollower(a, follower{it: it, how: kind, own: own, carriers: carriers, whys: whysOf(of, string(w.GetUID()), carriers, reports), names: targetNames(ctx, srv)})
	return nil
}

// isRevision reports whether an object is the ReplicaSet of a revision of a Deployment.
func isRevision(w *unstructured.Unstructured) bool {
	owner := metav1.GetControllerOfNoCopy(w)
	return w.GetKind() == "ReplicaSet" && owner != nil && owner.Kind == "Deployment"
}

// custom reports whether a group may have kinds with ResourceProfiles. Users may not be allowed to read these.
func custom(group string) bool {
	return strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io") && !strings.HasSuffix(group, ".kcp.io")
}

// native reports whether each physical cluster has an object of its own in the place of this one.
func native(of found) bool {
	return of.Resource == "configmaps" && of.name == "kube-root-ca.crt" || of.Resource == "serviceaccounts" && of.name == "default"
}

// carriersOf returns the Assignments of the objects because of which an object is in physical clusters.
func carriersOf(ctx context.Context, srv *remote.Server, of found, kind how, placed []*workload.Assignment) (all []*workload.Assignment, err error) {
	among := usersAmong
	if kind == follows {
		among = workloadsAmong
	}
	carries, err := among(ctx, srv, of, placed)
	if err != nil {
		return nil, err
	}
	for _, p := range placed {
		if carries(p) {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *workload.Assignment) int { return strings.Compare(titleOf(a), titleOf(b)) })
	return all, nil
}

// titleOf returns the kind and the name of a placed object.
func titleOf(a *workload.Assignment) string {
	return fmt.Sprintf("%s %q", a.Spec.Workload.Kind, a.Spec.Workload.Name)
}

// whysOf returns why targets do not have an object, by their keys: what they report about it, and what its
// carriers miss there.
func whysOf(of found, uid string, carriers []*workload.Assignment, reports []*workload.TargetStatus) map[string]string {
	whys := map[string]string{}
	for _, r := range reports {
		if r.Spec.Workload.UID == uid && r.Spec.Reason != "" {
			whys[r.Spec.Key] = r.Spec.Reason + ": " + r.Spec.Message
		}
		if !slices.ContainsFunc(carriers, func(c *workload.Assignment) bool { return c.Spec.Workload.UID == r.Spec.Workload.UID }) {
			continue
		}
		for _, text := range r.Spec.Missing {
			if strings.HasPrefix(text, fmt.Sprintf("%s %q ", of.Resource, of.name)) {
				whys[r.Spec.Key] = "MissingDependency: " + text
			}
		}
	}
	return whys
}

// mostAsked is the maximum of workloads in a PlacementReview.
const mostAsked = 100

// workloadsAmong tells which placed objects are workloads, and do not follow others. The server knows that.
func workloadsAmong(ctx context.Context, srv *remote.Server, of found, placed []*workload.Assignment) (func(*workload.Assignment) bool, error) {
	is := map[scheduling.ReviewedReference]bool{}
	refTo := func(p *workload.Assignment) scheduling.ReviewedReference {
		return scheduling.ReviewedReference{Group: p.Spec.Workload.Group, Resource: p.Spec.Workload.Resource, Namespace: of.namespace, Name: p.Spec.Workload.Name}
	}
	var ask []scheduling.ReviewedReference
	for _, p := range placed {
		if howOf(schema.GroupResource{Group: p.Spec.Workload.Group, Resource: p.Spec.Workload.Resource}, false) == unplaced {
			ask = append(ask, refTo(p))
		}
	}
	for some := range slices.Chunk(ask, mostAsked) {
		got, err := reviewPlacement(ctx, srv, scheduling.PlacementReviewSpec{Workloads: some})
		if err != nil {
			return nil, err
		}
		for _, w := range got.Workloads {
			is[w.ReviewedReference] = true
		}
	}
	return func(p *workload.Assignment) bool { return is[refTo(p)] }, nil
}

// usersAmong tells which placed objects refer to an object, themselves or by their service account.
func usersAmong(ctx context.Context, srv *remote.Server, of found, placed []*workload.Assignment) (func(*workload.Assignment) bool, error) {
	wanted := []reference{{of.Resource, of.name}}
	if of.Resource == "secrets" {
		accounts, err := srv.Resource(srv.Base.Path, schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"})
		if err != nil {
			return nil, err
		}
		list, err := accounts.Namespace(of.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for _, account := range list.Items {
			if pulls, _, _ := unstructured.NestedSlice(account.Object, "imagePullSecrets"); account.GetName() != "default" && refers(map[string]any{"imagePullSecrets": pulls}, wanted[0]) {
				wanted = append(wanted, reference{"serviceaccounts", account.GetName()})
			}
		}
	}
	uses, listed := map[string]bool{}, map[schema.GroupResource]bool{}
	for _, p := range placed {
		gr := schema.GroupResource{Group: p.Spec.Workload.Group, Resource: p.Spec.Workload.Resource}
		if listed[gr] {
			continue
		}
		listed[gr] = true
		one := found{namespace: of.namespace}
		var err error
		if one.GroupVersionResource, err = of.mapper.ResourceFor(gr.WithVersion("")); err != nil {
			return nil, err
		}
		objects, err := one.objects(srv)
		if err != nil {
			return nil, err
		}
		list, err := objects.List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for _, o := range list.Items {
			uses[string(o.GetUID())] = slices.ContainsFunc(wanted, func(r reference) bool { return refers(o.Object["spec"], r) })
		}
	}
	return func(p *workload.Assignment) bool { return uses[p.Spec.Workload.UID] }, nil
}

// A reference names an object of the same namespace.
type reference struct{ resource, name string }

// refers reports whether the specification of an object, with the pod template in it, refers to an object.
func refers(in any, to reference) bool {
	switch in := in.(type) {
	case []any:
		return slices.ContainsFunc(in, func(one any) bool { return refers(one, to) })
	case map[string]any:
		for key, value := range in {
			if namesOf(key, value, to.resource)[to.name] || refers(value, to) {
				return true
			}
		}
	}
	return false
}

// namesOf returns the names of objects of a resource that a field refers to.
func namesOf(field string, value any, resource string) map[string]bool {
	names := map[string]bool{}
	add := func(of any, key string) {
		if m, ok := of.(map[string]any); ok {
			of = m[key]
		}
		if name, ok := of.(string); ok {
			names[name] = true
		}
	}
	switch resource + " " + field {
	case "configmaps configMap", "configmaps configMapRef", "configmaps configMapKeyRef",
		"secrets secret", "secrets secretRef", "secrets secretKeyRef", "secrets nodePublishSecretRef":
		add(value, "name")
	case "secrets secretName", "serviceaccounts serviceAccountName", "serviceaccounts serviceAccount":
		add(value, "")
	case "persistentvolumeclaims persistentVolumeClaim":
		add(value, "claimName")
	case "secrets imagePullSecrets":
		all, _ := value.([]any)
		for _, one := range all {
			add(one, "name")
		}
	}
	return names
}

// A follower is an object that is where others are.
type follower struct {
	it       string
	how      how
	own      *workload.Assignment // nil if it has none
	carriers []*workload.Assignment
	whys     map[string]string // why targets do not have it, by key
	names    map[string]string // of targets that the user may see, by key
}

// printFollower prints where an object is that is where others are.
func printFollower(a *command.App, f follower) {
	rule, none := "is wherever a workload of its namespace is", "no workload of the namespace is placed"
	switch f.how {
	case referred:
		rule, none = "is wherever a workload that refers to it is", "no workload that is placed refers to it"
	case stays:
		rule, none = "is where the first workload that uses it is, and stays there", "no workload that is placed uses it"
	}
	rows := f.rows()
	if len(rows) == 0 {
		a.Print.Say("%s is in no physical cluster: it %s, and %s.", f.it, rule, none)
		if f.own != nil && f.own.Spec.Reason != "" {
			a.Print.Say("%s: %s", f.own.Spec.Reason, f.own.Spec.Message)
		}
		a.Print.Note("To find out why a workload is not placed, run: kubectl kcp workload explain KIND/NAME")
		return
	}
	a.Print.Say("%s %s.", f.it, rule)
	a.Print.Table(append([][]string{{"LOCATION", "CLUSTER", "PHASE", "BECAUSE OF", "WHY"}}, rows...))
}

// rows returns a row for each target that has the object, or shall have it.
func (f follower) rows() (rows [][]string) {
	var parts []workload.AssignedTarget
	if f.own != nil {
		parts = f.own.Spec.Targets
	}
	if f.how == referred { // it has no Assignment
		for _, c := range f.carriers {
			for _, t := range c.Spec.Targets {
				if !slices.ContainsFunc(parts, func(of workload.AssignedTarget) bool { return of.Key == t.Key }) {
					parts = append(parts, workload.AssignedTarget{Key: t.Key, Location: t.Location, Phase: workload.Active})
				}
			}
		}
	}
	for _, t := range parts {
		var because []string
		for _, c := range f.carriers {
			if slices.ContainsFunc(c.Spec.Targets, func(of workload.AssignedTarget) bool { return of.Key == t.Key }) {
				because = append(because, titleOf(c))
			}
		}
		rows = append(rows, []string{output.OrDash(t.Location), output.OrDash(f.names[t.Key]), string(t.Phase), output.OrDash(strings.Join(because, ", ")), output.OrDash(cmp.Or(f.whys[t.Key], t.Reason))})
	}
	slices.SortFunc(rows, slices.Compare)
	return rows
}

// assignmentsIn returns the Assignments of a namespace.
func assignmentsIn(ctx context.Context, s *remote.Server, namespace string) ([]*workload.Assignment, error) {
	return listIn[workload.Assignment](ctx, s, namespace, "assignments")
}

// reportsIn returns the reports about the workloads of a namespace.
func reportsIn(ctx context.Context, s *remote.Server, namespace string) ([]*workload.TargetStatus, error) {
	return listIn[workload.TargetStatus](ctx, s, namespace, "targetstatuses")
}

func listIn[T any](ctx context.Context, s *remote.Server, namespace, resource string) (all []*T, err error) {
	objects, err := s.Resource(s.Base.Path, workload.GroupVersion.WithResource(resource))
	if err != nil {
		return nil, err
	}
	list, err := objects.Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		one := new(T)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, one); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

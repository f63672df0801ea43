package define

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	"k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	"k8s.io/apiextensions-apiserver/pkg/controller/apiapproval"
	upstreamestablish "k8s.io/apiextensions-apiserver/pkg/controller/establish"
	"k8s.io/apiextensions-apiserver/pkg/controller/nonstructuralschema"
	"k8s.io/apiextensions-apiserver/pkg/controller/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
)

type definition = apiextensionsv1.CustomResourceDefinition

// called returns a definition in example.com with these names: plural, singular, kind, list kind
// and short names.
func called(names string) *definition {
	n := strings.Fields(names)
	return &definition{
		ObjectMeta: metav1.ObjectMeta{Name: n[0] + ".example.com", Generation: 1},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: n[0], Singular: n[1], Kind: n[2], ListKind: n[3], ShortNames: n[4:]},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
			}},
		},
	}
}

// wanting returns crd with other names in its spec than in its status.
func wanting(crd *definition, names string) *definition {
	crd.Spec.Names, crd.Generation = called(names).Spec.Names, crd.Generation+1
	return crd
}

// settle returns crd after establish, with the other, settled definitions.
func settle(t *testing.T, crd *definition, others ...*definition) *definition {
	t.Helper()
	taken := newTaken()
	for _, o := range append(others, crd) {
		if o.Spec.Group == crd.Spec.Group {
			taken.add(o.Status.AcceptedNames, holder(o.Name))
		}
	}
	var internal apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(crd.DeepCopy(), &internal, nil); err != nil {
		t.Fatal(err)
	}
	establish(&internal, taken)
	out := &definition{}
	if err := apiextensionsv1.Convert_apiextensions_CustomResourceDefinition_To_v1_CustomResourceDefinition(&internal, out, nil); err != nil {
		t.Fatal(err)
	}
	return out
}

// asUpstream returns crd after upstream's controllers.
func asUpstream(t *testing.T, crd *definition, others ...*definition) (got *definition) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewSimpleClientset() //nolint:staticcheck // the other one does not know the types of definitions
		client.PrependReactor("update", "customresourcedefinitions", refuseStale(client.Tracker()))
		crds := client.ApiextensionsV1().CustomResourceDefinitions()
		for _, o := range append(others, crd) {
			if err := client.Tracker().Add(o.DeepCopy()); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		factory := externalversions.NewSharedInformerFactory(client, 0)
		informer := factory.Apiextensions().V1().CustomResourceDefinitions()
		names := status.NewNamingConditionController(klog.Background(), informer, client.ApiextensionsV1())
		structural := nonstructuralschema.NewConditionController(informer, client.ApiextensionsV1())
		approval := apiapproval.NewKubernetesAPIApprovalPolicyConformantConditionController(informer, client.ApiextensionsV1())
		establishing := upstreamestablish.NewEstablishingController(informer, client.ApiextensionsV1())
		go names.RunWithContext(ctx)
		go structural.RunWithContext(1, ctx)
		go approval.RunWithContext(1, ctx)
		go establishing.RunWithContext(ctx)
		factory.StartWithContext(ctx)
		<-time.After(time.Minute) // of the bubble: until all have retried what conflicted
		establishing.QueueCRD(crd.Name, 0)
		<-time.After(time.Minute)
		var err error
		if got, err = crds.Get(ctx, crd.Name, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
		cancel()
		factory.Shutdown()
		synctest.Wait()
	})
	return got
}

// refuseStale makes stale writes fail with a conflict, as in a server. The tracker of the fake
// client accepts them, so upstream's controllers would undo writes of each other.
func refuseStale(tracker clienttesting.ObjectTracker) clienttesting.ReactionFunc {
	revision := 0
	return func(action clienttesting.Action) (bool, runtime.Object, error) {
		written := action.(clienttesting.UpdateAction).GetObject().(*definition)
		o, err := tracker.Get(action.GetResource(), "", written.Name)
		if err != nil {
			return true, nil, err
		}
		if o.(*definition).ResourceVersion != written.ResourceVersion {
			return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), written.Name, errors.New("it is stale"))
		}
		revision++
		written.ResourceVersion = strconv.Itoa(revision)
		return false, nil, nil
	}
}

// Every definition gets the final status of upstream's controllers, which then have nothing to
// do.
func TestEstablishedAsUpstream(t *testing.T) {
	other := settle(t, called("gizmos gizmo Gizmo GizmoList gz"))
	elsewhere := settle(t, called("foos foo Foo FooList f"))
	elsewhere.Name, elsewhere.Spec.Group = "foos.other.com", "other.com"
	accepted := func() *definition { return settle(t, called("foos foo Foo FooList f")) }
	change := func(crd *definition, f func(*definition)) *definition { f(crd); return crd }
	for name, c := range map[string]struct {
		crd      *definition
		accepted string // names, as they are accepted
		reason   string // of NamesAccepted
		pending  bool
	}{
		"fresh":                   {called("foos foo Foo FooList f fo"), "foos foo Foo FooList f fo", "NoConflicts", false},
		"plural":                  {called("gz foo Foo FooList"), "- foo Foo FooList", "PluralConflict", true},
		"singular":                {called("foos gizmo Foo FooList"), "foos - Foo FooList", "SingularConflict", true},
		"singular is short":       {called("foos gz Foo FooList"), "foos - Foo FooList", "SingularConflict", true},
		"short":                   {called("foos foo Foo FooList a gz b"), "foos foo Foo FooList", "ShortNamesConflict", true},
		"two short":               {called("foos foo Foo FooList gz gizmo gizmos"), "foos foo Foo FooList", "ShortNamesConflict", true},
		"kind":                    {called("foos foo Gizmo FooList"), "foos foo - FooList", "KindConflict", true},
		"kind is a list":          {called("foos foo GizmoList FooList"), "foos foo - FooList", "KindConflict", true},
		"list kind":               {called("foos foo Foo GizmoList"), "foos foo Foo -", "ListKindConflict", true},
		"everything":              {called("gz gizmo Gizmo GizmoList gizmos"), "- - - -", "ListKindConflict", true},
		"names change":            {wanting(accepted(), "foos fu Fu FuList u"), "foos fu Fu FuList u", "NoConflicts", false},
		"kind changes to taken":   {wanting(accepted(), "foos foo Gizmo FooList f"), "foos foo Foo FooList f", "KindConflict", false},
		"all change to taken":     {wanting(accepted(), "foos gizmo Gizmo GizmoList gz"), "foos foo Foo FooList f", "ListKindConflict", false},
		"short names are dropped": {wanting(accepted(), "foos foo Foo FooList"), "foos foo Foo FooList", "NoConflicts", false},
		"categories":              {change(accepted(), func(d *definition) { d.Spec.Names.Categories = []string{"all"} }), "foos foo Foo FooList f", "NoConflicts", false},
		"protected group":         {inGroup(called("foos foo Foo FooList f"), "x.k8s.io", "https://github.com/kubernetes/kubernetes/pull/1"), "foos foo Foo FooList f", "NoConflicts", false},
		"unapproved":              {inGroup(called("foos foo Foo FooList f"), "x.kubernetes.io", "unapproved, for a test"), "foos foo Foo FooList f", "NoConflicts", false},
		"not approved":            {inGroup(called("foos foo Foo FooList f"), "x.k8s.io", ""), "foos foo Foo FooList f", "NoConflicts", false},
		"approved oddly":          {inGroup(called("foos foo Foo FooList f"), "x.k8s.io", "yes"), "foos foo Foo FooList f", "NoConflicts", false},
		"not structural": {change(called("foos foo Foo FooList f"), func(d *definition) {
			d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties = map[string]apiextensionsv1.JSONSchemaProps{"a": {}}
		}), "foos foo Foo FooList f", "NoConflicts", false},
		"two versions, not structural": {change(called("foos foo Foo FooList f"), func(d *definition) {
			second := *d.Spec.Versions[0].DeepCopy()
			second.Name, second.Storage = "v2", false
			second.Schema.OpenAPIV3Schema.Type = ""
			d.Spec.Versions, d.Spec.PreserveUnknownFields = append(d.Spec.Versions, second), true
		}), "foos foo Foo FooList f", "NoConflicts", false},
		"structural again": {change(settle(t, change(called("foos foo Foo FooList f"), func(d *definition) { d.Spec.PreserveUnknownFields = true })), func(d *definition) {
			d.Spec.PreserveUnknownFields = false
		}), "foos foo Foo FooList f", "NoConflicts", false},
		"CA bundle":                        {webhooked(called("foos foo Foo FooList f"), "nonsense"), "foos foo Foo FooList f", "NoConflicts", true},
		"CA bundle of what is established": {webhooked(accepted(), "nonsense"), "foos foo Foo FooList f", "NoConflicts", false},
	} {
		t.Run(name, func(t *testing.T) {
			got := settle(t, c.crd, other, elsewhere)
			want := called(c.accepted)
			accepted := got.Status.AcceptedNames
			for _, n := range []*string{&accepted.Plural, &accepted.Singular, &accepted.Kind, &accepted.ListKind} {
				if *n == "" {
					*n = "-"
				}
			}
			accepted.Categories = nil
			if d := cmp.Diff(want.Spec.Names, accepted, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("accepted (-want +got):\n%s", d)
			}
			conditions := conditionsOf(got)
			if got := conditions[apiextensionsv1.NamesAccepted]; got.Reason != c.reason || (got.Status == "True") != (c.reason == "NoConflicts") {
				t.Errorf("names: %+v", got)
			}
			if got := conditions[apiextensionsv1.Established]; (got.Status != "True") != c.pending {
				t.Errorf("established: %+v", got)
			}
			theirs := asUpstream(t, c.crd, other, elsewhere)
			if d := cmp.Diff(theirs.Status.AcceptedNames, got.Status.AcceptedNames, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("names (-upstream +ours):\n%s", d)
			}
			if d := cmp.Diff(conditionsOf(theirs), conditions); d != "" {
				t.Errorf("conditions (-upstream +ours):\n%s", d)
			}
			if d := cmp.Diff(got.Status, asUpstream(t, got, other, elsewhere).Status); d != "" {
				t.Errorf("upstream's controllers change it:\n%s", d)
			}
			if d := cmp.Diff(got.Status, settle(t, got, other, elsewhere).Status); d != "" {
				t.Errorf("it changes when it is settled again:\n%s", d)
			}
		})
	}
}

func inGroup(crd *definition, group, approval string) *definition {
	crd.Name, crd.Spec.Group = crd.Spec.Names.Plural+"."+group, group
	if approval != "" {
		crd.Annotations = map[string]string{apiextensionsv1.KubeAPIApprovedAnnotation: approval}
	}
	return crd
}

func webhooked(crd *definition, ca string) *definition {
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ConversionReviewVersions: []string{"v1"},
			ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: new("https://example.com"), CABundle: []byte(ca)},
		},
	}
	return crd
}

// conditionsOf returns the conditions by type, without their times.
func conditionsOf(crd *definition) map[apiextensionsv1.CustomResourceDefinitionConditionType]apiextensionsv1.CustomResourceDefinitionCondition {
	all := map[apiextensionsv1.CustomResourceDefinitionConditionType]apiextensionsv1.CustomResourceDefinitionCondition{}
	for _, c := range crd.Status.Conditions {
		c.LastTransitionTime = metav1.Time{}
		all[c.Type] = c
	}
	return all
}

// A definition gets released names with its next write.
func TestReleasedNames(t *testing.T) {
	first := settle(t, called("foos foo Foo FooList f"))
	second := settle(t, called("bars foo Foo FooList f"), first)
	if got := conditionsOf(second)[apiextensionsv1.NamesAccepted]; got.Status != "False" {
		t.Fatalf("taken names are accepted: %+v", got)
	}
	renamed := settle(t, wanting(first, "foos fu Fu FuList u"), second)
	second = settle(t, second, renamed)
	if got := conditionsOf(second); got[apiextensionsv1.NamesAccepted].Status != "True" || got[apiextensionsv1.Established].Status != "True" {
		t.Errorf("names that are free are not accepted: %+v", got)
	}
	if got := conditionsOf(renamed)[apiextensionsv1.Established]; got.Status != "True" {
		t.Errorf("a renamed definition is not established any more: %+v", got)
	}
	back := settle(t, wanting(renamed, "foos foo Foo FooList f"), second)
	if got := conditionsOf(back)[apiextensionsv1.NamesAccepted]; got.Status != "False" || back.Status.AcceptedNames.Kind != "Fu" {
		t.Errorf("names that it let go of are accepted again: %+v", back.Status)
	}
}

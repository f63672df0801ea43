package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unforked/kcp/test/child"
)

const (
	hooksPath = "/apis/admissionregistration.k8s.io/v1/"
	// policies is the number of policies beside which config maps are made.
	policies = 10
	// denied is the name of config maps that the policies refuse, which shows that they are in force.
	denied = "denied"
	// inForceWithin is how long a stock server may take until policies are in force.
	inForceWithin = time.Minute
)

// extra is an object that a case makes and deletes again.
type extra struct {
	path   string // of its collection, below the tenant
	object metav1.Object
}

// admission measures what config maps cost beside webhooks and policies. On a stock server these
// apply to all namespaces, so they are deleted between the measurements.
func admission(ctx context.Context, b *bench) error {
	sides, done, err := b.sides(ctx)
	if err != nil {
		return err
	}
	defer done()
	plain := map[string]time.Duration{}
	for _, beside := range []struct {
		name string
		all  []extra
	}{
		{"no webhook and policy", nil},
		{"a webhook that does not match", []extra{webhookForSecrets()}},
		{fmt.Sprintf("%d policies that allow it", policies), policiesForConfigMaps()},
	} {
		samples, err := b.inTurns(sides, func(s *side, round int) (sample, error) {
			return b.createBeside(ctx, s, fmt.Sprintf("beside-%d-%d", len(beside.all), round), beside.all)
		})
		if err != nil {
			return err
		}
		for name, x := range samples {
			of, each := "config map create beside "+beside.name, x.each(x.server)
			b.report.addTime(name, of, "p50", x.percentile(50))
			b.report.addTime(name, of, "server CPU each", each)
			if beside.all == nil {
				plain[name] = each
			} else if plain[name] > 0 {
				b.report.add(name, of, "server CPU, times that of none", plainCount, float64(each)/float64(plain[name]))
			}
		}
	}
	return nil
}

// createBeside measures creations of config maps in a new tenant with some webhooks or policies.
func (b *bench) createBeside(ctx context.Context, s *side, name string, beside []extra) (sample, error) {
	t, err := s.newTenant(ctx, s.clients[0], name)
	if err != nil {
		return sample{}, err
	}
	if err := makeAll(ctx, s.clients[0], t, beside); err != nil {
		return sample{}, err
	}
	if len(beside) > 1 {
		if err := b.awaitPolicies(ctx, s, t); err != nil {
			return sample{}, err
		}
	}
	n := b.plan.operations / b.plan.rounds
	create := func(prefix string) operation {
		return func(ctx context.Context, c *client, i int) error {
			return b.create(ctx, c, t.configMaps, fmt.Sprintf("%s-%d", prefix, i))
		}
	}
	if _, err := s.load(ctx, s.clients, max(n/20, len(s.clients)), create("warm")); err != nil {
		return sample{}, err
	}
	x, err := s.load(ctx, s.clients, n, create("object"))
	return x, errors.Join(err, deleteAll(ctx, s.clients[0], t, beside))
}

// awaitPolicies returns when the policies of a tenant are in force.
func (b *bench) awaitPolicies(ctx context.Context, s *side, t tenant) error {
	ctx, cancel := context.WithTimeoutCause(ctx, inForceWithin, errors.New("the policies are not in force"))
	defer cancel()
	for {
		err := b.create(ctx, s.clients[0], t.configMaps, denied)
		if apierrors.IsInvalid(err) {
			return nil
		}
		if err == nil {
			_, err = s.clients[0].Call(ctx, http.MethodDelete, t.configMaps+"/"+denied, jsonType, nil)
		}
		if err != nil {
			return err
		}
		if err := child.Pause(ctx, 10*time.Millisecond); err != nil {
			return context.Cause(ctx)
		}
	}
}

func makeAll(ctx context.Context, c *client, t tenant, all []extra) error {
	for _, m := range all {
		if err := post(ctx, c, base(t)+m.path, m.object); err != nil {
			return err
		}
	}
	return nil
}

func deleteAll(ctx context.Context, c *client, t tenant, all []extra) error {
	for _, m := range all {
		if _, err := c.Call(ctx, http.MethodDelete, base(t)+m.path+"/"+m.object.GetName(), jsonType, nil); err != nil {
			return err
		}
	}
	return nil
}

func rule(resource string) admissionv1.RuleWithOperations {
	return admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{admissionv1.Create},
		Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{resource}},
	}
}

// webhookForSecrets returns a webhook that no request for config maps calls.
func webhookForSecrets() extra {
	none, url := admissionv1.SideEffectClassNone, "https://bench.invalid"
	return extra{hooksPath + "validatingwebhookconfigurations", &admissionv1.ValidatingWebhookConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "ValidatingWebhookConfiguration"},
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "bench.example.com", ClientConfig: admissionv1.WebhookClientConfig{URL: &url}, SideEffects: &none,
			AdmissionReviewVersions: []string{"v1"}, Rules: []admissionv1.RuleWithOperations{rule("secrets")},
		}},
	}}
}

// policiesForConfigMaps returns policies that are evaluated for config maps, and their bindings.
func policiesForConfigMaps() []extra {
	var all []extra
	for i := range policies {
		about := metav1.ObjectMeta{Name: fmt.Sprintf("bench-%d", i)}
		all = append(all, extra{hooksPath + "validatingadmissionpolicies", &admissionv1.ValidatingAdmissionPolicy{
			TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "ValidatingAdmissionPolicy"}, ObjectMeta: about,
			Spec: admissionv1.ValidatingAdmissionPolicySpec{
				MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: rule("configmaps")}}},
				Validations:      []admissionv1.Validation{{Expression: fmt.Sprintf(`object.metadata.name != "%s" && object.metadata.name.size() < %d`, denied, 200+i)}},
			},
		}}, extra{hooksPath + "validatingadmissionpolicybindings", &admissionv1.ValidatingAdmissionPolicyBinding{
			TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "ValidatingAdmissionPolicyBinding"}, ObjectMeta: about,
			Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: about.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
		}})
	}
	return all
}

// features measures what remains of features in workspaces that have used and dropped them:
// policies, webhooks, quotas and definitions. The first use also fills caches that all workspaces
// share, such as the environments of CEL.
func features(ctx context.Context, b *bench) error {
	return b.onKCP(ctx, func(kcp subject, s *server) error {
		defer s.stop()
		clients, err := child.Connect(ctx, s.user, b.plan.clients)
		if err != nil {
			return err
		}
		defer child.CloseAll(clients)
		tenants := make([]tenant, b.plan.featured)
		if _, err = spread(ctx, clients, len(tenants), func(ctx context.Context, c *client, i int) (err error) {
			tenants[i], err = s.newTenant(ctx, c, fmt.Sprintf("tenant-%d", i))
			return err
		}); err != nil {
			return err
		}
		unused, err := b.atRest(ctx, s)
		if err != nil {
			return err
		}
		first := min(10, len(tenants)/2)
		if err := b.useAndDrop(ctx, clients, tenants[:first]); err != nil {
			return err
		}
		before, err := b.atRest(ctx, s)
		if err != nil {
			return err
		}
		if err := b.useAndDrop(ctx, clients, tenants[first:]); err != nil {
			return err
		}
		after, err := b.atRest(ctx, s)
		if err != nil {
			return err
		}
		what := "have used and dropped policies, webhooks, quotas and definitions"
		of := fmt.Sprintf("the first %d workspaces %s", first, what)
		b.report.add(kcp.name(), of, "more memory", bytesUnit, before.memory-unused.memory)
		b.report.add(kcp.name(), of, "more live heap", bytesUnit, before.liveHeap-unused.liveHeap)
		b.report.add(kcp.name(), of, "more metric series", plainCount, before.series-unused.series)
		of, n := fmt.Sprintf("%d further workspaces %s", len(tenants)-first, what), float64(len(tenants)-first)
		b.report.add(kcp.name(), of, "memory each", bytesUnit, (after.memory-before.memory)/n)
		b.report.add(kcp.name(), of, "live heap each", bytesUnit, (after.liveHeap-before.liveHeap)/n)
		b.report.add(kcp.name(), of, "more goroutines", plainCount, after.goroutines-before.goroutines)
		b.report.add(kcp.name(), of, "more metric series", plainCount, after.series-before.series)
		return nil
	})
}

// useAndDrop makes policies, webhooks, a quota, a definition and an object in each workspace, and
// deletes them.
func (b *bench) useAndDrop(ctx context.Context, clients []*client, tenants []tenant) error {
	all := append(policiesForConfigMaps()[:2], webhookForSecrets(), extra{"/api/v1/namespaces/default/resourcequotas", &corev1.ResourceQuota{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ResourceQuota"}, ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/configmaps": resource.MustParse("10")}},
	}}, extra{"/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition(customGroup)})
	_, err := spread(ctx, clients, len(tenants), func(ctx context.Context, c *client, i int) error {
		if err := makeAll(ctx, c, tenants[i], all); err != nil {
			return err
		}
		if err := b.create(ctx, c, tenants[i].configMaps, "used"); err != nil {
			return err
		}
		if err := deleteAll(ctx, c, tenants[i], all); err != nil {
			return err
		}
		_, err := c.Call(ctx, http.MethodDelete, tenants[i].configMaps+"/used", jsonType, nil)
		return err
	})
	return err
}

// atRest measures a server some time after the last write.
func (b *bench) atRest(ctx context.Context, s *server) (footprint, error) {
	if err := child.Pause(ctx, b.plan.settle); err != nil {
		return footprint{}, err
	}
	return s.footprint(ctx)
}

package controllers

import (
	"bytes"
	"context"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/storage/feed"
)

// ServiceAccountTokens fills secrets for tokens of service accounts, and deletes the secrets
// of accounts that do not exist.
func ServiceAccountTokens(d Deps) control.Loop {
	tokens := newTokenSecrets()
	d.Store.Feed().Follow(tokens)
	d.Workspaces.RootCA.Follow(tokens.PutAll)
	return control.Loop{
		Name: "service-account-tokens",
		On:   d.on(tokens.Subscribe),
		Do: func(ctx context.Context, k control.Key) error {
			clients, err := typedcorev1.NewForConfig(d.Client(k.Cluster))
			if err != nil {
				return err
			}
			secret, err := clients.Secrets(k.Namespace).Get(ctx, k.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) || err == nil && secret.Type != corev1.SecretTypeServiceAccountToken {
				return tokens.forget(k, func(account string) error { return dropReference(ctx, clients, k, account) })
			}
			if err != nil {
				return err
			}
			account, err := accountOf(ctx, clients, k.Namespace, secret.Annotations[corev1.ServiceAccountNameKey])
			if apierrors.IsNotFound(err) || err == nil && !isOf(secret, account) {
				klog.FromContext(ctx).V(4).Info("The service account does not exist: deleting its token secret")
				err := clients.Secrets(k.Namespace).Delete(ctx, k.Name, *metav1.NewPreconditionDeleteOptions(string(secret.UID)))
				return trigger.UntilChange(err)
			}
			if err != nil {
				return err
			}
			return d.fillToken(ctx, clients, account, secret)
		},
	}
}

// accountOf returns the service account of that name. The name is from a secret, so it may
// be invalid; then the error is NotFound.
func accountOf(ctx context.Context, clients typedcorev1.CoreV1Interface, namespace, name string) (*corev1.ServiceAccount, error) {
	if len(content.IsPathSegmentName(name)) > 0 {
		return nil, apierrors.NewNotFound(corev1.Resource("serviceaccounts"), name)
	}
	return clients.ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
}

// isOf reports whether a token secret belongs to that account, and not to an earlier account
// of the same name.
func isOf(secret *corev1.Secret, account *corev1.ServiceAccount) bool {
	uid := secret.Annotations[corev1.ServiceAccountUIDKey]
	return uid == "" || uid == string(account.UID)
}

// fillToken writes the missing data of a token secret.
func (d Deps) fillToken(ctx context.Context, clients typedcorev1.CoreV1Interface, account *corev1.ServiceAccount, secret *corev1.Secret) error {
	ca := []byte(d.Workspaces.RootCA.Text())
	current := len(ca) == 0 || bytes.Equal(secret.Data[corev1.ServiceAccountRootCAKey], ca)
	if current && len(secret.Data[corev1.ServiceAccountNamespaceKey]) > 0 && len(secret.Data[corev1.ServiceAccountTokenKey]) > 0 {
		return nil
	}
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	if !current {
		secret.Data[corev1.ServiceAccountRootCAKey] = ca
	}
	if len(secret.Data[corev1.ServiceAccountNamespaceKey]) == 0 {
		secret.Data[corev1.ServiceAccountNamespaceKey] = []byte(secret.Namespace)
	}
	if len(secret.Data[corev1.ServiceAccountTokenKey]) == 0 {
		token, err := d.Tokens.LegacyToken(ctx, account, secret)
		if err != nil {
			return err
		}
		secret.Data[corev1.ServiceAccountTokenKey] = []byte(token)
	}
	// The annotations exist: validation requires the one with the name of the account.
	secret.Annotations[corev1.ServiceAccountUIDKey] = string(account.UID)
	_, err := clients.Secrets(secret.Namespace).Update(ctx, secret, metav1.UpdateOptions{})
	return trigger.UntilChange(err)
}

// dropReference removes a deleted secret from the list of its account.
func dropReference(ctx context.Context, clients typedcorev1.CoreV1Interface, secret control.Key, name string) error {
	account, err := accountOf(ctx, clients, secret.Namespace, name)
	if err != nil {
		return utilerrors.FilterOut(err, apierrors.IsNotFound)
	}
	listed := len(account.Secrets)
	account.Secrets = slices.DeleteFunc(account.Secrets, func(r corev1.ObjectReference) bool { return r.Name == secret.Name })
	if len(account.Secrets) == listed {
		return nil
	}
	_, err = clients.ServiceAccounts(secret.Namespace).Update(ctx, account, metav1.UpdateOptions{})
	return utilerrors.FilterOut(err, apierrors.IsNotFound)
}

// tokenSecrets maps token secrets to their service accounts. It has no state for other
// secrets and accounts.
type tokenSecrets struct {
	*trigger.Inbox

	mu sync.Mutex
	// known has the account of each secret, and of is its inverse.
	known map[control.Key]string
	of    map[control.Key][]control.Key
	// gone has the account of each deleted secret that may still be in the account's
	// list.
	gone    map[control.Key]string
	reading bool
}

func newTokenSecrets() *tokenSecrets {
	t := &tokenSecrets{gone: map[control.Key]string{}}
	t.Inbox = trigger.New(t.keys)
	t.Reset()
	return t
}

// Reset implements [feed.Follower].
func (t *tokenSecrets) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known, t.of, t.reading = map[control.Key]string{}, map[control.Key][]control.Key{}, true
}

// Apply implements [feed.Follower].
func (t *tokenSecrets) Apply(e feed.Event) {
	k := trigger.Key(e.Key)
	switch e.Key.Resource {
	case serviceAccounts:
		for _, secret := range t.secretsOf(k) {
			t.Put(secret)
		}
	case secrets:
		account, err := tokenAccount(e)
		if err != nil {
			klog.Background().Error(err, "The change of the secret is ignored until it can be read", "key", e.Key.String())
			return
		}
		if t.set(k, account) {
			t.Put(k)
		}
	}
}

// Done implements [feed.Follower].
func (t *tokenSecrets) Done() {
	t.mu.Lock()
	t.reading = false
	t.mu.Unlock()
	t.PutAll()
}

func (t *tokenSecrets) keys() []control.Key {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]control.Key, 0, len(t.known))
	for k := range t.known {
		all = append(all, k)
	}
	return all
}

func (t *tokenSecrets) secretsOf(account control.Key) []control.Key {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.reading {
		return nil
	}
	return slices.Clone(t.of[account])
}

// set records the account of a secret, or its deletion if account is empty. It reports
// whether the loop must check the secret.
func (t *tokenSecrets) set(k control.Key, account string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	old, was := t.known[k]
	if was && old != account {
		at := control.Key{Cluster: k.Cluster, Namespace: k.Namespace, Name: old}
		delete(t.known, k)
		if t.of[at] = slices.DeleteFunc(t.of[at], func(s control.Key) bool { return s == k }); len(t.of[at]) == 0 {
			delete(t.of, at)
		}
		if t.Full(len(t.gone)) { // the process that runs the loop has them too
			clear(t.gone)
		}
		t.gone[k] = old
	}
	if account != "" {
		delete(t.gone, k)
	}
	if account != "" && old != account {
		at := control.Key{Cluster: k.Cluster, Namespace: k.Namespace, Name: account}
		t.known[k] = account
		t.of[at] = append(t.of[at], k)
	}
	return !t.reading && (was || account != "")
}

// forget calls drop for a deleted secret, and forgets the secret if drop succeeds.
func (t *tokenSecrets) forget(k control.Key, drop func(account string) error) error {
	t.mu.Lock()
	account, ok := t.gone[k]
	t.mu.Unlock()
	if !ok {
		return nil
	}
	if err := drop(account); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone[k] == account {
		delete(t.gone, k)
	}
	return nil
}

// tokenAccount returns the account of a token secret, or an empty name if the secret is not
// for tokens or was deleted.
func tokenAccount(e feed.Event) (string, error) {
	if e.Deleted() {
		return "", nil
	}
	o, err := e.Object(context.Background())
	if err != nil {
		return "", err
	}
	secret, err := asSecret(o)
	if err != nil || secret.Type != corev1.SecretTypeServiceAccountToken {
		return "", err
	}
	return secret.Annotations[corev1.ServiceAccountNameKey], nil
}

func asSecret(o runtime.Object) (*corev1.Secret, error) {
	if secret, ok := o.(*corev1.Secret); ok {
		return secret, nil
	}
	secret := &corev1.Secret{}
	return secret, legacyscheme.Scheme.Convert(o, secret, nil)
}

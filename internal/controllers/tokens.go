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
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/store"
)

// ServiceAccountTokens fills secrets that ask for the token of a service account,
// and deletes them when that account does not exist, or no longer.
func ServiceAccountTokens(d Deps) control.Loop {
	tokens := newTokenSecrets()
	d.Store.Spine().Follow(tokens)
	return control.Loop{
		Name: "service-account-tokens",
		On:   []control.Source{tokens.source(d.Store.Spine().Ready())},
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
				klog.FromContext(ctx).V(4).Info("service account is gone, and so is its token")
				err := clients.Secrets(k.Namespace).Delete(ctx, k.Name, *metav1.NewPreconditionDeleteOptions(string(secret.UID)))
				return ignore(err, apierrors.IsNotFound, apierrors.IsConflict)
			}
			if err != nil {
				return err
			}
			return d.fillToken(ctx, clients, account, secret)
		},
	}
}

// accountOf returns the service account of that name, which is what somebody wrote
// into a secret: none has a name that cannot be asked for.
func accountOf(ctx context.Context, clients typedcorev1.CoreV1Interface, namespace, name string) (*corev1.ServiceAccount, error) {
	if len(content.IsPathSegmentName(name)) > 0 {
		return nil, apierrors.NewNotFound(corev1.Resource("serviceaccounts"), name)
	}
	return clients.ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
}

// isOf reports whether a token secret is of that account, and not of one that had
// its name before.
func isOf(secret *corev1.Secret, account *corev1.ServiceAccount) bool {
	uid := secret.Annotations[corev1.ServiceAccountUIDKey]
	return uid == "" || uid == string(account.UID)
}

// fillToken writes into a secret what it lacks of the token of an account.
func (d Deps) fillToken(ctx context.Context, clients typedcorev1.CoreV1Interface, account *corev1.ServiceAccount, secret *corev1.Secret) error {
	ca := []byte(d.Workspaces.RootCA)
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
	// It has the name of the account, or would not be a valid secret of its type.
	secret.Annotations[corev1.ServiceAccountUIDKey] = string(account.UID)
	_, err := clients.Secrets(secret.Namespace).Update(ctx, secret, metav1.UpdateOptions{})
	// Whoever changed it in the meantime wakes the loop.
	return ignore(err, apierrors.IsNotFound, apierrors.IsConflict)
}

// dropReference takes a secret that is gone out of the list of its account.
func dropReference(ctx context.Context, clients typedcorev1.CoreV1Interface, secret control.Key, name string) error {
	account, err := accountOf(ctx, clients, secret.Namespace, name)
	if err != nil {
		return ignore(err, apierrors.IsNotFound)
	}
	listed := len(account.Secrets)
	account.Secrets = slices.DeleteFunc(account.Secrets, func(r corev1.ObjectReference) bool { return r.Name == secret.Name })
	if len(account.Secrets) == listed {
		return nil
	}
	_, err = clients.ServiceAccounts(secret.Namespace).Update(ctx, account, metav1.UpdateOptions{})
	return ignore(err, apierrors.IsNotFound)
}

// ignore returns err unless it is of one of the kinds.
func ignore(err error, kinds ...func(error) bool) error {
	for _, is := range kinds {
		if is(err) {
			return nil
		}
	}
	return err
}

// tokenSecrets knows which secrets are for tokens of which service account. Of
// other secrets and accounts it keeps nothing.
type tokenSecrets struct {
	*inbox

	mu sync.Mutex
	// known has the account of each secret, and of is its inverse.
	known map[control.Key]string
	of    map[control.Key][]control.Key
	// gone has the account of each secret that was deleted and may still be in the
	// account's list.
	gone    map[control.Key]string
	reading bool
}

func newTokenSecrets() *tokenSecrets {
	t := &tokenSecrets{gone: map[control.Key]string{}}
	t.inbox = newInbox(t.keys)
	t.Reset()
	return t
}

// Reset implements [store.Follower].
func (t *tokenSecrets) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known, t.of, t.reading = map[control.Key]string{}, map[control.Key][]control.Key{}, true
}

// Apply implements [store.Follower].
func (t *tokenSecrets) Apply(e store.Event) {
	k := keyOf(e.Key)
	switch e.Key.Resource {
	case serviceAccounts:
		for _, secret := range t.secretsOf(k) {
			t.put(secret)
		}
	case secrets:
		account := tokenAccount(e)
		if t.set(k, account) {
			t.put(k)
		}
	}
}

// Done implements [store.Follower].
func (t *tokenSecrets) Done() {
	t.mu.Lock()
	t.reading = false
	t.mu.Unlock()
	for _, k := range t.keys() {
		t.put(k)
	}
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

// set records which account a secret is for, none if empty, and reports whether
// there is something to do for it.
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
		if t.full(len(t.gone)) { // the process whose loop runs knows them too
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

// forget has drop called for a secret that is gone, until that succeeds.
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

// tokenAccount returns the account that a secret is to hold a token of, or nothing
// if it is not for tokens, or is gone.
func tokenAccount(e store.Event) string {
	if e.Deleted() {
		return ""
	}
	o, err := e.Object(context.Background())
	if err == nil {
		var secret *corev1.Secret
		if secret, err = asSecret(o); err == nil && secret.Type == corev1.SecretTypeServiceAccountToken {
			return secret.Annotations[corev1.ServiceAccountNameKey]
		}
	}
	if err != nil {
		klog.Background().Error(err, "Stored object left out", "key", e.Key.String())
	}
	return ""
}

func asSecret(o runtime.Object) (*corev1.Secret, error) {
	if secret, ok := o.(*corev1.Secret); ok {
		return secret, nil
	}
	secret := &corev1.Secret{}
	return secret, legacyscheme.Scheme.Convert(o, secret, nil)
}

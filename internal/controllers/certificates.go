package controllers

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	typedcertificatesv1 "k8s.io/client-go/kubernetes/typed/certificates/v1"
	certificatesapi "k8s.io/kubernetes/pkg/apis/certificates"

	"github.com/unforked/kcp/internal/control"
	"github.com/unforked/kcp/internal/control/trigger"
	"github.com/unforked/kcp/internal/storage/feed"
	"github.com/unforked/kcp/internal/storage/keys"
)

const (
	// keepDecided and keepOpen are how long Kubernetes keeps requests for certificates after
	// they were issued, denied or failed, and while nothing was issued.
	keepDecided = time.Hour
	keepOpen    = 24 * time.Hour
)

var certificateRequests = keys.Resource{Root: keys.Native, Group: certificatesapi.GroupName, Resource: "certificatesigningrequests"}

// A certificateRequest is the part of a CertificateSigningRequest that the loop needs.
type certificateRequest struct {
	uid types.UID
	// until is when the request is deleted; zero if it is kept.
	until time.Time
	// ready is set while an approved request waits for a signer of Kubernetes.
	ready bool
}

// CertificateRequests signs approved requests for certificates whose signer is the server, for
// users of one workspace, and deletes old ones as Kubernetes does.
func CertificateRequests(d Deps) control.Loop {
	table := feed.NewTable(d.Store.Feed(), certificateRequests, certificateRequestOf)
	return control.Loop{
		Name: "certificate-requests",
		On:   d.on(trigger.Table(table)),
		Do: func(ctx context.Context, k control.Key) error {
			r, ok := table.Get(k.Cluster, "", k.Name)
			if !ok {
				return nil
			}
			client, err := typedcertificatesv1.NewForConfig(d.Client(k.Cluster))
			if err != nil {
				return err
			}
			requests := client.CertificateSigningRequests()
			if !r.until.IsZero() && !time.Now().Before(r.until) {
				err := requests.Delete(ctx, k.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &r.uid}})
				if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
					return nil
				}
				return err
			}
			if r.ready {
				if err := d.sign(ctx, requests, k); err != nil {
					return err
				}
			}
			if r.until.IsZero() {
				return nil
			}
			return control.After(max(0, time.Until(r.until)))
		},
	}
}

// sign issues the certificate of an approved request, or marks the request as failed.
func (d Deps) sign(ctx context.Context, requests typedcertificatesv1.CertificateSigningRequestInterface, k control.Key) error {
	r, err := requests.Get(ctx, k.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	// The table may have known an earlier request of the same name.
	if err != nil || !waits(r) {
		return err
	}
	var reason, message string
	switch {
	case r.Spec.SignerName != certificatesv1.KubeAPIServerClientSignerName:
		reason, message = "SignerNotServed", fmt.Sprintf("This server does not sign for %s: workspaces have no nodes.", r.Spec.SignerName)
	case !forClient(r.Spec.Usages):
		reason, message = "SignerValidationFailure", "The usages must have \"client auth\", and otherwise only \"digital signature\" and \"key encipherment\"."
	default:
		var life time.Duration
		if r.Spec.ExpirationSeconds != nil {
			life = time.Duration(*r.Spec.ExpirationSeconds) * time.Second
		}
		if r.Status.Certificate, err = d.Issue(k.Cluster, r.Spec.Request, life); err != nil {
			reason, message = "SignerValidationFailure", err.Error()
		}
	}
	if reason != "" {
		r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
			Type: certificatesv1.CertificateFailed, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastUpdateTime: metav1.Now(),
		})
	}
	_, err = requests.UpdateStatus(ctx, r, metav1.UpdateOptions{})
	return err
}

// waits reports whether a request is approved, and waits for a signer of Kubernetes.
func waits(r *certificatesv1.CertificateSigningRequest) bool {
	approved := false
	for _, c := range r.Status.Conditions {
		if c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed {
			return false
		}
		approved = approved || c.Type == certificatesv1.CertificateApproved
	}
	return approved && len(r.Status.Certificate) == 0 && isOurs(r.Spec.SignerName)
}

// forClient reports whether usages are those of a client certificate.
func forClient(usages []certificatesv1.KeyUsage) bool {
	allowed := []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth, certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment}
	return slices.Contains(usages, certificatesv1.UsageClientAuth) &&
		!slices.ContainsFunc(usages, func(u certificatesv1.KeyUsage) bool { return !slices.Contains(allowed, u) })
}

// isOurs reports whether a signer is one of the controller manager of Kubernetes.
func isOurs(signer string) bool {
	switch signer {
	case certificatesv1.KubeAPIServerClientSignerName, certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName:
		return true
	default:
		return false
	}
}

func certificateRequestOf(o runtime.Object) (certificateRequest, error) {
	r, ok := o.(*certificatesapi.CertificateSigningRequest)
	if !ok {
		return certificateRequest{}, fmt.Errorf("a CertificateSigningRequest is a %T", o)
	}
	known := certificateRequest{uid: r.UID}
	issued := len(r.Status.Certificate) > 0
	var approved, failed bool
	var ends []time.Time
	for _, c := range r.Status.Conditions {
		switch c.Type {
		case certificatesapi.CertificateApproved:
			approved = true
			ends = append(ends, after(c.LastUpdateTime, keepOpen))
			if issued {
				ends = append(ends, after(c.LastUpdateTime, keepDecided), expiry(r.Status.Certificate))
			}
		case certificatesapi.CertificateDenied, certificatesapi.CertificateFailed:
			failed = true
			ends = append(ends, after(c.LastUpdateTime, keepDecided))
		}
	}
	if len(r.Status.Conditions) == 0 {
		ends = append(ends, after(r.CreationTimestamp, keepOpen))
	}
	for _, end := range ends {
		if !end.IsZero() && (known.until.IsZero() || end.Before(known.until)) {
			known.until = end
		}
	}
	known.ready = approved && !failed && !issued && isOurs(r.Spec.SignerName)
	return known, nil
}

// after returns the time d after t, or none if t is not set.
func after(t metav1.Time, d time.Duration) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.Add(d)
}

// expiry returns when a certificate expires, or none if it cannot be read.
func expiry(certificate []byte) time.Time {
	block, _ := pem.Decode(certificate)
	if block == nil {
		return time.Time{}
	}
	all, err := x509.ParseCertificates(block.Bytes)
	if err != nil || len(all) == 0 {
		return time.Time{}
	}
	return all[0].NotAfter
}

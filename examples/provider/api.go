package main

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A Certificate is issued for the public key of a request. Its DNS name is
// <name>.<namespace>.<logical cluster>.example.com, so no tenant gets the name of another.
type Certificate struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              CertificateSpec   `json:"spec"`
	Status            CertificateStatus `json:"status,omitempty"`
}

// CertificateSpec is what a tenant asks for.
type CertificateSpec struct {
	// request is a certificate request in PEM. Only its public key is used.
	Request string `json:"request"`
	// days is how long the certificate is valid.
	Days int `json:"days,omitempty"`
}

// CertificateStatus is what the authority has issued.
type CertificateStatus struct {
	// certificate and authority are certificates in PEM.
	Certificate string `json:"certificate,omitempty"`
	Authority   string `json:"authority,omitempty"`
	// notAfter is when the certificate expires.
	NotAfter *metav1.Time `json:"notAfter,omitempty"`
	// conditions has the condition Ready.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// CertificateList is a list of Certificates.
type CertificateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []Certificate `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (c *Certificate) DeepCopyObject() runtime.Object {
	out := *c
	out.ObjectMeta = *c.ObjectMeta.DeepCopy()
	out.Status.NotAfter = c.Status.NotAfter.DeepCopy()
	out.Status.Conditions = append([]metav1.Condition(nil), c.Status.Conditions...)
	return &out
}

// DeepCopyObject implements runtime.Object.
func (l *CertificateList) DeepCopyObject() runtime.Object {
	out := &CertificateList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopyObject().(*Certificate))
	}
	return out
}

// newScheme returns a scheme with the kinds of this program.
func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	gv := schema.GroupVersion{Group: "example.com", Version: "v1"}
	s.AddKnownTypes(gv, &Certificate{}, &CertificateList{})
	metav1.AddToGroupVersion(s, gv)
	return s
}

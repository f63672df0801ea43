package objects

import (
	"cmp"
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/unforked/kcp"
	"github.com/unforked/kcp/client"
)

// A Warning is a message for the users of a logical cluster about an object in it.
type Warning struct {
	About corev1.ObjectReference
	// Of tells this warning from others about the object. It is the last part of the name of the Event.
	Of              string
	Reason, Message string
}

// mostMessage is the maximum of bytes in the message of an Event.
const mostMessage = 1024

// Warn makes a warning an Event of the logical cluster. The Event is there once: the same message again writes nothing,
// and another one replaces the last one.
func Warn(ctx context.Context, s *kcp.Server, at kcp.ClusterName, w Warning) error {
	cfg, err := s.Own(string(at))
	if err != nil {
		return err
	}
	all, err := client.New[*corev1.Event, *corev1.EventList](cfg, string(at), corev1.SchemeGroupVersion.WithResource("events"))
	if err != nil {
		return err
	}
	events := all.Namespace(cmp.Or(w.About.Namespace, metav1.NamespaceDefault))
	e := w.event()
	if _, err = events.Create(ctx, e, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		return err
	}
	have, err := events.Get(ctx, e.Name, metav1.GetOptions{})
	if err != nil || have.Message == e.Message {
		return IgnoreGone(err)
	}
	patch, err := json.Marshal(map[string]any{"message": e.Message, "count": have.Count + 1, "lastTimestamp": e.LastTimestamp})
	if err != nil {
		return err
	}
	_, err = events.Patch(ctx, e.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return IgnoreGone(err)
}

func (w *Warning) event() *corev1.Event {
	now := metav1.Now()
	suffix := "." + w.Of
	name := strings.TrimRight(w.About.Name[:min(len(w.About.Name), 253-len(suffix))], "-.") + suffix
	message := w.Message
	if len(message) > mostMessage {
		message = strings.ToValidUTF8(message[:mostMessage], "")
	}
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: name, Namespace: cmp.Or(w.About.Namespace, metav1.NamespaceDefault)},
		InvolvedObject: w.About, Reason: w.Reason, Message: message, Type: corev1.EventTypeWarning, Count: 1,
		FirstTimestamp: now, LastTimestamp: now, Source: corev1.EventSource{Component: "kcp"},
	}
}

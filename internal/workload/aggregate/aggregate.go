// Package aggregate computes the status of a workload from the reports of its targets. It hides
// the rules for each kind, so that clients that wait for a workload work as on one cluster.
package aggregate

import (
	"cmp"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// A Deployment is the wanted state of a Deployment.
type Deployment struct {
	Generation int64
	Replicas   int32
	// MaxUnavailable is that of the rolling update. Nil means 25 %.
	MaxUnavailable *intstr.IntOrString
	// NotScheduled is the reason why targets do not have all replicas, with its explanation. It
	// is empty if they have.
	NotScheduled, Message string
	// Status is the present status.
	Status appsv1.DeploymentStatus
}

// A Report is what a target reports about its part of a Deployment.
type Report struct {
	// Location of the target, for messages.
	Location string
	// Generation of the Deployment that is applied at the target.
	Generation int64
	// Current is true if the part is applied as it is assigned, and the controllers of the
	// target have seen it.
	Current bool
	// Leaving is true if the target gives its part away.
	Leaving bool
	// Reason and Message say why the part is not applied.
	Reason, Message string
	// Missing are objects that the target lacks.
	Missing []string
	// Status is that of the Deployment at the target.
	Status appsv1.DeploymentStatus
}

// Status returns the status of a Deployment. Counters are sums. The observed generation is
// that of the Deployment only if every target applied it.
func Status(d Deployment, reports []Report, now time.Time) appsv1.DeploymentStatus {
	s := appsv1.DeploymentStatus{ObservedGeneration: d.Status.ObservedGeneration, CollisionCount: d.Status.CollisionCount}
	var terminating int32
	current, counted := len(reports) > 0, 0
	for _, r := range reports {
		s.Replicas += count(r.Status.Replicas)
		s.ReadyReplicas += count(r.Status.ReadyReplicas)
		s.AvailableReplicas += count(r.Status.AvailableReplicas)
		s.UnavailableReplicas += count(r.Status.UnavailableReplicas)
		if r.Status.TerminatingReplicas != nil {
			terminating += count(*r.Status.TerminatingReplicas)
		}
		if r.Current && r.Generation == d.Generation {
			// Replicas of another generation are not those that are wanted now.
			s.UpdatedReplicas += count(r.Status.UpdatedReplicas)
		}
		if r.Leaving {
			continue
		}
		counted++
		current = current && r.Current && r.Generation == d.Generation
	}
	if terminating > 0 {
		s.TerminatingReplicas = &terminating
	}
	if current && counted > 0 {
		s.ObservedGeneration = d.Generation
	}
	s.UnavailableReplicas = max(s.UnavailableReplicas, d.Replicas-s.AvailableReplicas)
	s.Conditions = conditions(d, s, reports, now)
	return s
}

// mostCounted is the maximum of a counter of one target. A sum of many fits into 32 bits.
const mostCounted = 1_000_000

// count returns a counter that a target reports, within what can be.
func count[T int32 | int64](n T) T { return min(max(n, 0), mostCounted) }

func conditions(d Deployment, s appsv1.DeploymentStatus, reports []Report, now time.Time) []appsv1.DeploymentCondition {
	next := []appsv1.DeploymentCondition{available(d, s), progressing(d, s, reports)}
	if c := failing(reports); c != nil {
		next = append(next, *c)
	}
	for _, r := range reports {
		if len(r.Missing) > 0 && !r.Leaving {
			next = append(next, appsv1.DeploymentCondition{Type: Placed, Status: corev1.ConditionFalse, Reason: MissingDependency, Message: missingText(r.Location, r.Missing)})
			break
		}
	}
	at := metav1.NewTime(now)
	for i := range next {
		c := &next[i]
		c.LastUpdateTime, c.LastTransitionTime = at, at
		for _, old := range d.Status.Conditions {
			if old.Type != c.Type || old.Status != c.Status {
				continue
			}
			c.LastTransitionTime = old.LastTransitionTime
			if old.Reason == c.Reason && old.Message == c.Message {
				c.LastUpdateTime = old.LastUpdateTime
			}
		}
	}
	return next
}

func available(d Deployment, s appsv1.DeploymentStatus) appsv1.DeploymentCondition {
	allowed := intstr.FromString("25%")
	if d.MaxUnavailable != nil {
		allowed = *d.MaxUnavailable
	}
	unavailable, err := intstr.GetScaledValueFromIntOrPercent(&allowed, int(d.Replicas), false)
	if err != nil {
		unavailable = 0 // the API server accepts no such value
	}
	if int(s.AvailableReplicas) >= int(d.Replicas)-unavailable && (s.AvailableReplicas > 0 || d.Replicas == 0) {
		return appsv1.DeploymentCondition{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue, Reason: "MinimumReplicasAvailable", Message: "Deployment has minimum availability."}
	}
	return appsv1.DeploymentCondition{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionFalse, Reason: "MinimumReplicasUnavailable", Message: "Deployment does not have minimum availability."}
}

// progressing is False if a target is stuck, so that kubectl rollout status does not wait for
// it for ever.
func progressing(d Deployment, s appsv1.DeploymentStatus, reports []Report) appsv1.DeploymentCondition {
	c := appsv1.DeploymentCondition{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionTrue}
	for _, r := range reports {
		for _, of := range r.Status.Conditions {
			if of.Type == appsv1.DeploymentProgressing && of.Status == corev1.ConditionFalse && !r.Leaving && r.Current {
				c.Status, c.Reason, c.Message = corev1.ConditionFalse, limited(of.Reason), limited(fmt.Sprintf("Location %q: %s", r.Location, of.Message))
				return c
			}
		}
	}
	switch {
	case d.NotScheduled != "":
		c.Reason, c.Message = "NotScheduled", fmt.Sprintf("%s: %s", d.NotScheduled, d.Message)
	case s.ObservedGeneration == d.Generation && s.UpdatedReplicas >= d.Replicas && s.AvailableReplicas >= d.Replicas && s.Replicas <= d.Replicas:
		c.Reason, c.Message = "NewReplicaSetAvailable", "Deployment has successfully progressed."
	default:
		c.Reason, c.Message = "ReplicaSetUpdated", "Deployment is progressing."
	}
	return c
}

// failing returns the condition ReplicaFailure, if a target cannot create replicas or apply its
// part.
func failing(reports []Report) *appsv1.DeploymentCondition {
	for _, r := range reports {
		if r.Reason != "" {
			return &appsv1.DeploymentCondition{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Reason: r.Reason,
				Message: fmt.Sprintf("Location %q: %s", r.Location, cmp.Or(r.Message, r.Reason))}
		}
		for _, of := range r.Status.Conditions {
			if of.Type == appsv1.DeploymentReplicaFailure && of.Status == corev1.ConditionTrue {
				return &appsv1.DeploymentCondition{Type: of.Type, Status: of.Status, Reason: limited(of.Reason), Message: limited(fmt.Sprintf("Location %q: %s", r.Location, of.Message))}
			}
		}
	}
	return nil
}

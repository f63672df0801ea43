// Package meter lets several servers in one process share metrics.
package meter

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics"
)

// Register registers m and returns the metric to use: m, or a metric of the same name
// and type that was registered earlier. The argument register is the Register method of
// a Kubernetes registry, or legacyregistry.Register.
func Register[M metrics.Registerable](register func(metrics.Registerable) error, m M) (M, error) {
	err := register(m)
	if err == nil {
		return m, nil
	}
	var already prometheus.AlreadyRegisteredError
	if errors.As(err, &already) {
		if existing, ok := already.ExistingCollector.(M); ok {
			return existing, nil
		}
	}
	return m, fmt.Errorf("register metric %s: %w", m.FQName(), err)
}

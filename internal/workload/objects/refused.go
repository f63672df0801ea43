package objects

import (
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Refused reports whether a logical cluster refuses a write: by a quota, a policy, or a webhook, which may also fail. Other
// errors do not last, or the object is gone.
func Refused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusUnauthorized, http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return false
	case http.StatusInternalServerError: // a webhook failed
		return true
	default:
		return code >= 400 && code < 500
	}
}

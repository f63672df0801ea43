package edge

import (
	"net/url"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Limit returns the parameter limit of a query for a list of some things. Without one, and at most,
// it is a whole page.
func Limit(query url.Values, page int, of string) (int, error) {
	text := query.Get("limit")
	if text == "" {
		return page, nil
	}
	limit, err := strconv.Atoi(text)
	if err != nil || limit < 0 {
		return 0, apierrors.NewBadRequest("limit must be a number of " + of + ", 0 for as many as possible")
	}
	if limit = min(limit, page); limit == 0 {
		limit = page
	}
	return limit, nil
}

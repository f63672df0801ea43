package edge

import (
	"net/url"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// PageLimit returns the number of items for a list that is served in pages: the parameter limit of
// the query, or page, which is the maximum, if there is none. of names the items in the error.
func PageLimit(query url.Values, page int, of string) (int, error) {
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

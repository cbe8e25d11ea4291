package cudaipc

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestErrorsAreFoundByTheirCodeAndSayWhatTheDriverSaid(t *testing.T) {
	err := fmt.Errorf("making an arena: %w", &Error{Code: ErrOutOfMemory, Function: "cuMemAlloc_v2", Name: "CUDA_ERROR_OUT_OF_MEMORY", Text: "out of memory"})
	require.ErrorIs(t, err, ErrOutOfMemory)
	require.NotErrorIs(t, err, ErrNoDevice)
	require.Equal(t, ErrOutOfMemory, CodeOf(err))
	require.Equal(t, "making an arena: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory", err.Error())
	require.Equal(t, "cuInit: CUDA_ERROR_NO_DEVICE (100)", (&Error{Code: ErrNoDevice, Function: "cuInit"}).Error())
	require.Equal(t, Code(0), CodeOf(fmt.Errorf("something else")))
	require.True(t, ErrIllegalAddress.ContextLost())
	require.False(t, ErrOutOfMemory.ContextLost())
}

// Every code that has a name of ours and can meet a user has advice that is not the general one.
func TestEveryRefusalHasAdvice(t *testing.T) {
	for code := range causes {
		require.Contains(t, codeNames, code)
		require.NotEmpty(t, why(code).Reason)
		require.NotEmpty(t, why(code).Advice)
	}
	require.Contains(t, why(ErrInvalidContext).Advice, "--pid=host")
	require.Contains(t, why(ErrLaunchFailed).Advice, "restart")
	require.NotEmpty(t, why(999).Advice)
}

#include "textflag.h"

// func prefetch(base unsafe.Pointer, size uintptr, rows *uint32, n uintptr)
TEXT ·prefetch(SB), NOSPLIT|NOFRAME, $0-32
	MOVD base+0(FP), R0
	MOVD size+8(FP), R1
	MOVD rows+16(FP), R2
	MOVD n+24(FP), R3
again:
	MOVWU.P 4(R2), R4
	MUL  R1, R4, R4
	ADD  R0, R4, R4
	PRFM (R4), PSTL1KEEP
	SUBS $1, R3, R3
	BNE  again
	RET
